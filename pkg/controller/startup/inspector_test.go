/*
Copyright The elasti-apiserver Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package startup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

var cart = types.NamespacedName{Namespace: "shop", Name: "cart"}

// testbed is an Inspector that runs, and what it inspects. Its time is that of a
// synctest bubble.
type testbed struct {
	*Inspector
	host *fake.Clientset
	// selector is that of the scale.
	selector string

	mu sync.Mutex
	// hanging are the namespaces for which requests for scales hang.
	hanging []string
	// failing is the error of requests for pods.
	failing error
	// lists are the requests for pods, enqueued what was reported as changed.
	lists    []clienttesting.ListActionImpl
	enqueued []types.NamespacedName
}

func (w *testbed) Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error) {
	if slices.Contains(w.hanging, target.Namespace) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &autoscalingv1.Scale{Status: autoscalingv1.ScaleStatus{Selector: w.selector}}, nil
}

// inBubble runs a test with a testbed.
func inBubble(t *testing.T, test func(t *testing.T, w *testbed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{host: fake.NewClientset(), selector: "app=cart"}
		informerstest.React(&w.host.Fake, "list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.lists = append(w.lists, action.(clienttesting.ListActionImpl))
			return w.failing != nil, nil, w.failing
		})
		w.Inspector = NewInspector(Options{Host: w.host, Scales: w, Clock: clock.RealClock{}, Enqueue: func(key types.NamespacedName) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.enqueued = append(w.enqueued, key)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			w.Run(ctx)
			close(ended)
		}()
		test(t, w)
		cancel()
		<-ended
	})
}

// fail has requests for pods fail, or succeed again.
func (w *testbed) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = err
}

// requests returns the requests for pods.
func (w *testbed) requests() []clienttesting.ListActionImpl {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lists)
}

// reports returns how often something was reported as changed.
func (w *testbed) reports() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.enqueued)
}

// after lets time pass, and waits until what it leads to is done.
func after(period time.Duration) {
	<-time.After(period)
	synctest.Wait()
}

func (w *testbed) add(t *testing.T, pod corev1.Pod) {
	t.Helper()
	pod.ObjectMeta = metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "pod", Labels: map[string]string{"app": "cart"}, CreationTimestamp: metav1.Now()}
	if err := w.host.Tracker().Add(&pod); err != nil {
		t.Fatal(err)
	}
}

func (w *testbed) report(t *testing.T, name, reason, note string) {
	t.Helper()
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Reason: reason, Note: note, DeprecatedLastTimestamp: metav1.Now()}
	if err := w.host.Tracker().Add(event); err != nil {
		t.Fatal(err)
	}
}

// reportAbout adds an Event about an object.
func (w *testbed) reportAbout(t *testing.T, uid types.UID, name, reason, note string) {
	t.Helper()
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Reason: reason, Note: note,
		Regarding: corev1.ObjectReference{UID: uid}, EventTime: metav1.NowMicro()}
	if err := w.host.Tracker().Add(event); err != nil {
		t.Fatal(err)
	}
}

// servePages has Events listed as a server does: those that the field selector
// matches, in the order of their names, a page at a time.
func (w *testbed) servePages() {
	informerstest.React(&w.host.Fake, "list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object, err := w.host.Tracker().List(eventsv1.SchemeGroupVersion.WithResource("events"), eventsv1.SchemeGroupVersion.WithKind("Event"), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		options := action.(clienttesting.ListActionImpl).ListOptions
		selector := fields.ParseSelectorOrDie(options.FieldSelector)
		page := &eventsv1.EventList{}
		for _, event := range slices.SortedFunc(slices.Values(object.(*eventsv1.EventList).Items), func(one, other eventsv1.Event) int { return cmp.Compare(one.Name, other.Name) }) {
			switch {
			case event.Name <= options.Continue || !selector.Matches(fields.Set{"regarding.uid": string(event.Regarding.UID)}):
			case int64(len(page.Items)) == options.Limit:
				page.Continue = page.Items[len(page.Items)-1].Name
				return true, page, nil
			default:
				page.Items = append(page.Items, event)
			}
		}
		return true, page, nil
	})
}

func startOfCart() Start {
	return Start{Target: scaling.Target{Namespace: "shop", Kind: "StatefulSet", Name: "cart"}, UID: "target", Since: time.Now()}
}

func TestAProblemIsKnownWithinTenSecondsOfTheWake(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		start := startOfCart()
		w.Observe(cart, start)
		after(grace - time.Millisecond)
		if len(w.requests()) > 0 {
			t.Error("pods were inspected although most targets have started by then")
		}
		after(2 * time.Second)
		// The kubelet reports late that there is no such image.
		w.add(t, podWith(waiting("ErrImagePull", "not found")))
		after(4 * time.Second)
		problem, inspected := w.Observe(cart, start)
		if !inspected || problem == nil || problem.Reason != v1alpha1.ReasonImageNotPulled || w.reports() == 0 {
			t.Errorf("got %+v, %t; reported %d times", problem, inspected, w.reports())
		}
		known := w.reports()
		after(time.Minute)
		if w.reports() > known {
			t.Error("what is known already was reported again")
		}
	})
}

func TestInspectionsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		w.Observe(cart, startOfCart())
		after(time.Hour)
		// The pauses grow to half a minute.
		if got := len(w.requests()); got < 100 || got > 140 {
			t.Errorf("%d inspections in an hour", got)
		}
		if options := w.requests()[0].ListOptions; options.Limit == 0 || options.ResourceVersion != "" || options.LabelSelector != "app=cart" {
			t.Errorf("the request is %+v", options)
		}
		w.Forget(cart)
		inspections := len(w.requests())
		after(time.Hour)
		if len(w.requests()) > inspections {
			t.Error("a target was inspected that has started")
		}
	})
}

func TestManyStartsAreInspectedAtARate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		for i := range 1000 {
			w.Observe(types.NamespacedName{Namespace: "shop", Name: time.Duration(i).String()}, startOfCart())
		}
		after(grace + 10*time.Second)
		if got := len(w.requests()); got > 11*inspectionsPerSecond {
			t.Errorf("%d inspections in 10 s", got)
		}
	})
}

// A namespace with a thousand targets that do not start has its turn among others.
func TestStartsOfANamespaceWithManyDelayNoOther(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		crowded := startOfCart()
		crowded.Target.Namespace = "crowd"
		for i := range 1000 {
			w.Observe(types.NamespacedName{Namespace: "crowd", Name: strconv.Itoa(i)}, crowded)
		}
		after(time.Millisecond)
		w.Observe(cart, startOfCart())
		after(grace + 10*time.Second)
		place := slices.IndexFunc(w.requests(), func(list clienttesting.ListActionImpl) bool { return list.Namespace == cart.Namespace })
		if place < 0 || place > 2*inspectionsPerSecond {
			t.Errorf("the first of %d inspections that is of another namespace has the place %d", len(w.requests()), place)
		}
	})
}

func TestEventsShowProblemsThatPodsDoNot(t *testing.T) {
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		event  string
		reason string
	}{
		"a volume":                      {new(podWith(waiting("ContainerCreating", ""))), "FailedMount", v1alpha1.ReasonVolumeNotMounted},
		"a pod that is not created":     {nil, "FailedCreate", v1alpha1.ReasonPodsNotCreated},
		"the network":                   {new(podWith(waiting("ContainerCreating", ""))), "FailedCreatePodSandBox", v1alpha1.ReasonPodNotStarted},
		"a container that runs already": {new(podWith(running())), "FailedMount", ""},
		"an Event of something else":    {new(podWith(waiting("ContainerCreating", ""))), "Pulling", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *testbed) {
				start := startOfCart()
				w.Observe(cart, start)
				if test.pod != nil {
					w.add(t, *test.pod)
				}
				w.report(t, "first", test.event, "in its words")
				after(10 * time.Second)
				problem, _ := w.Observe(cart, start)
				if (problem == nil) != (test.reason == "") || problem != nil && *problem != (Problem{test.reason, "in its words"}) {
					t.Errorf("got %+v", problem)
				}
			})
		})
	}
}

// Events are listed in the order of their names, the other ones of the namespace
// among them, and only some at a time.
func TestTheNewestEventIsFoundAmongManyOthers(t *testing.T) {
	for name, about := range map[string]types.UID{"of other objects": "other", "of the same object": "target"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *testbed) {
				w.servePages()
				start := startOfCart()
				for i := range 3*eventsPerPage + 1 {
					w.reportAbout(t, about, fmt.Sprintf("a%04d", i), "ScalingReplicaSet", "scaled up")
				}
				after(time.Second)
				w.reportAbout(t, "target", "b", "FailedCreate", "exceeded quota")
				w.reportAbout(t, "other", "c", "FailedMount", "not its own")
				w.Observe(cart, start)
				after(10 * time.Second)
				want := Problem{v1alpha1.ReasonPodsNotCreated, "exceeded quota"}
				if problem, _ := w.Observe(cart, start); problem == nil || *problem != want {
					t.Errorf("got %+v, want %+v", problem, want)
				}
			})
		})
	}
}

func TestPagesOfEventsAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		lists := 0
		informerstest.React(&w.host.Fake, "list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			lists++
			return true, &eventsv1.EventList{ListMeta: metav1.ListMeta{Continue: "more"}}, nil
		})
		w.Observe(cart, startOfCart())
		after(grace)
		w.mu.Lock()
		defer w.mu.Unlock()
		if lists != maxEventPages {
			t.Errorf("%d pages were read, want %d", lists, maxEventPages)
		}
	})
}

func TestOldEventsSayNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		w.report(t, "before", "FailedCreate", "at the last wake")
		after(time.Minute)
		start := startOfCart()
		w.Observe(cart, start)
		after(10 * time.Second)
		if problem, _ := w.Observe(cart, start); problem != nil {
			t.Errorf("got %+v", problem)
		}
	})
}

func TestASuccessFollowsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		start := startOfCart()
		w.Observe(cart, start)
		w.add(t, podWith(waiting("ContainerCreating", "")))
		w.report(t, "a", "FailedMount", "not yet")
		after(5 * time.Second)
		w.report(t, "b", "Pulling", "pulling the image")
		after(10 * time.Second)
		if problem, _ := w.Observe(cart, start); problem != nil {
			t.Errorf("got %+v while the image is pulled", problem)
		}
	})
}

func TestSilenceIsAProblemInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		start := startOfCart()
		w.Observe(cart, start)
		after(noPodsAfter - time.Second)
		if problem, _ := w.Observe(cart, start); problem != nil {
			t.Errorf("got %+v", problem)
		}
		after(maxPause)
		if problem, _ := w.Observe(cart, start); problem == nil || problem.Reason != v1alpha1.ReasonPodsNotCreated {
			t.Errorf("without pods: got %+v", problem)
		}
		pod := podWith(running())
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [app]"})
		w.add(t, pod)
		after(maxPause)
		if problem, _ := w.Observe(cart, start); problem != nil {
			t.Errorf("the pod starts: got %+v", problem)
		}
		after(notReadyAfter)
		want := Problem{v1alpha1.ReasonPodNotReady, "no pod has become ready in time: containers with unready status: [app]"}
		if problem, _ := w.Observe(cart, start); problem == nil || *problem != want {
			t.Errorf("got %+v, want %+v", problem, want)
		}
	})
}

func TestSelectorOfTheServiceIsUsedWhenTheScaleHasNone(t *testing.T) {
	for name, test := range map[string]struct {
		scale   string
		service map[string]string
		want    string
	}{
		"scale":                    {"app=cart", map[string]string{"app": "other"}, "app=cart"},
		"Service":                  {"", map[string]string{"app": "other"}, "app=other"},
		"scale that is not valid":  {"app in", map[string]string{"app": "other"}, "app=other"},
		"neither, which is no pod": {"", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *testbed) {
				w.selector = test.scale
				start := startOfCart()
				start.Selector = test.service
				w.Observe(cart, start)
				after(grace)
				got := ""
				for _, list := range w.requests() {
					got = list.ListOptions.LabelSelector
				}
				if got != test.want || (len(w.requests()) == 0) != (test.want == "") {
					t.Errorf("requested %q (%d requests), want %q", got, len(w.requests()), test.want)
				}
			})
		})
	}
}

func TestWhatWasKnownStaysKnownWhenARequestFails(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		start := startOfCart()
		w.fail(errors.New("no permission"))
		w.Observe(cart, start)
		after(grace)
		if _, inspected := w.Observe(cart, start); inspected || w.reports() > 0 {
			t.Error("a failed inspection counts")
		}
		w.fail(nil)
		w.add(t, unschedulable("no node"))
		after(minPause)
		w.fail(errors.New("timeout"))
		after(time.Minute)
		if problem, inspected := w.Observe(cart, start); !inspected || problem == nil || problem.Reason != v1alpha1.ReasonUnschedulable {
			t.Errorf("got %+v, %t", problem, inspected)
		}
	})
}

func TestAnotherStartIsInspectedAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		w.add(t, unschedulable("no node"))
		first := startOfCart()
		w.Observe(cart, first)
		after(grace)
		if problem, _ := w.Observe(cart, first); problem == nil {
			t.Error("the problem is not known")
		}
		second := startOfCart()
		if problem, inspected := w.Observe(cart, second); problem != nil || inspected {
			t.Errorf("got %+v, %t of a start that was not inspected", problem, inspected)
		}
		if len(w.subjects) != 1 {
			t.Errorf("%d subjects", len(w.subjects))
		}
	})
}

// Requests for scales that hang, such as those of a server of a tenant, do not keep the
// Inspector from the targets of others.
func TestHangingRequestsOfSomeNamespacesDoNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *testbed) {
		w.hanging = []string{"crowd-0", "crowd-1", "crowd-2"}
		observe := func(key types.NamespacedName) bool {
			target := scaling.Target{Namespace: key.Namespace, APIVersion: "apps/v1", Kind: "Deployment", Name: key.Name}
			_, inspected := w.Observe(key, Start{Target: target, Since: time.Unix(0, 0)})
			return inspected
		}
		for _, namespace := range w.hanging {
			for i := range 10 {
				observe(types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("cart-%d", i)})
			}
		}
		after(minPause)
		cart := types.NamespacedName{Namespace: "shop", Name: "cart"}
		observe(cart)
		after(minPause)
		if !observe(cart) {
			t.Error("the target of another namespace was not inspected")
		}
	})
}
