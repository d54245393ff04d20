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

package elastiservice

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/startup"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

// rejectPods makes a Deployment of which the server rejects every pod.
func (c *cluster) rejectPods(name, message string) {
	c.t.Helper()
	c.version++
	object := targettest.Deployment(shop, name, 2, 0, c.version)
	condition := map[string]any{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
	if err := unstructured.SetNestedSlice(object.Object, []any{condition}, "status", "conditions"); err != nil {
		c.t.Fatal(err)
	}
	c.put(c.dynamic.Tracker(), object)
}

// addPod makes a pod of the Service "cart" whose image does not exist.
func (c *cluster) addPod(message string) {
	c.t.Helper()
	c.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "cart-0", UID: "cart-0", Labels: map[string]string{"app": "cart"}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "app", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message}},
		}}},
	})
}

// eventuallyEventWith waits for an Event with a type, a reason and a text.
func (c *cluster) eventuallyEventWith(eventType, reason, text string) {
	c.t.Helper()
	expired := time.After(waitTimeout)
	for {
		select {
		case event := <-c.events.Events:
			if strings.HasPrefix(event, eventType+" "+reason+" ") && strings.Contains(event, text) {
				return
			}
		case <-expired:
			c.t.Fatalf("no Event %s with %q", reason, text)
		}
	}
}

func TestAWakeThatCannotSucceedSaysWhy(t *testing.T) {
	const words = "in the words of the cluster"
	for name, test := range map[string]struct {
		wake   func(*cluster)
		reason string
	}{
		"the pods are rejected": {func(c *cluster) { c.rejectPods("cart", words) }, v1alpha1.ReasonPodsNotCreated},
		"the image is missing":  {func(c *cluster) { c.addPod(words); c.setDeployment("cart", 2, 0) }, v1alpha1.ReasonImageNotPulled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.create(cartElastiService())
			c.start()
			c.eventuallyCondition("cart", v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, v1alpha1.ReasonAsleep)
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

			test.wake(c)
			c.eventuallyCondition("cart", v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, test.reason)
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, test.reason)
			for _, conditionType := range []string{v1alpha1.ConditionTargetAvailable, v1alpha1.ConditionReady} {
				if message := findCondition(c.elastiService("cart"), conditionType).Message; !strings.Contains(message, words) {
					t.Errorf("the message of %s is %q", conditionType, message)
				}
			}
			c.eventuallyEventWith(corev1.EventTypeWarning, test.reason, words)

			c.setDeployment("cart", 2, 2)
			c.eventuallyCondition("cart", v1alpha1.ConditionTargetAvailable, metav1.ConditionTrue, v1alpha1.ReasonPodReady)
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		})
	}
}

func TestAProblemIsOverWhenTheTargetSleeps(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.addPod("not found")
	c.setDeployment("cart", 2, 0)
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled)
	c.setDeployment("cart", 0, 0)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, v1alpha1.ReasonAsleep)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// What keeps a target from starting may be over for a while before a pod is ready.
func TestAStartThatSucceedsAfterAllIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	c.rejectPods("cart", "exceeded quota")
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonPodsNotCreated, "exceeded quota")
	c.setDeployment("cart", 2, 0)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, v1alpha1.ReasonStarting)
	c.setDeployment("cart", 2, 2)
	c.eventuallyEventWith(corev1.EventTypeNormal, v1alpha1.ReasonPodReady, "ready")
}

func TestStartsThatFailAreForgottenWithTheirElastiServices(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: shop, Name: "cart"}
	starts := newFailedStarts()
	starts.add(key, func(types.NamespacedName) bool { return false })
	if len(starts.keys) > 0 {
		t.Error("one that does not exist is remembered")
	}
	starts.add(key, func(types.NamespacedName) bool { return true })
	if !starts.remove(key) || starts.remove(key) || len(starts.keys) > 0 {
		t.Errorf("%v are remembered", starts.keys)
	}
}

func TestAProblemOutlastsARestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	c.addPod("not found")
	c.setDeployment("cart", 2, 0)
	stop := c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled)
	c.eventuallyEventWith(corev1.EventTypeWarning, v1alpha1.ReasonImageNotPulled, "not found")
	stop()

	c.start()
	c.setDeployment("cart", 2, 2)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	expired := time.After(waitTimeout)
	for {
		select {
		case event := <-c.events.Events:
			if strings.Contains(event, " "+v1alpha1.ReasonImageNotPulled+" ") {
				t.Fatalf("the Event was recorded again: %s", event)
			}
			if strings.Contains(event, " "+v1alpha1.ReasonPodReady+" ") {
				return
			}
		case <-expired:
			t.Fatal("it was not recorded that the target has started")
		}
	}
}

func TestTargetAvailableCondition(t *testing.T) {
	ref := cartElastiService().Spec.ScaleTargetRef
	awake := target.Observation{Object: &target.Object{}, Scale: &target.Scale{Desired: 2}}
	asleep := target.Observation{Object: &target.Object{}, Scale: &target.Scale{}}
	problem := &startup.Problem{Reason: v1alpha1.ReasonUnschedulable, Message: "no node"}
	reported := &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonImageNotPulled, Message: "no image"}
	slept := &metav1.Condition{Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAsleep, Message: "asleep"}
	for name, test := range map[string]struct {
		facts  availabilityFacts
		status metav1.ConditionStatus
		reason string
	}{
		"asleep":                       {availabilityFacts{observation: asleep, ready: 1}, metav1.ConditionFalse, v1alpha1.ReasonAsleep},
		"a pod is ready":               {availabilityFacts{observation: awake, ready: 1, problem: problem}, metav1.ConditionTrue, v1alpha1.ReasonPodReady},
		"starting":                     {availabilityFacts{observation: awake, before: slept}, metav1.ConditionFalse, v1alpha1.ReasonStarting},
		"a problem":                    {availabilityFacts{observation: awake, problem: problem, inspected: true, before: reported}, metav1.ConditionFalse, v1alpha1.ReasonUnschedulable},
		"a problem before a restart":   {availabilityFacts{observation: awake, before: reported}, metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled},
		"a problem that is over":       {availabilityFacts{observation: awake, inspected: true, before: reported}, metav1.ConditionFalse, v1alpha1.ReasonStarting},
		"not known for now":            {availabilityFacts{observation: target.Observation{Pending: true}, before: reported}, metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled},
		"not known yet":                {availabilityFacts{observation: target.Observation{Pending: true}}, "", ""},
		"a target that does not exist": {availabilityFacts{before: reported}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.facts.ref = ref
			got := computeTargetAvailableCondition(test.facts)
			if (got == nil) != (test.status == "") || got != nil && (got.status != test.status || got.reason != test.reason || got.message == "") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestStartTimeOutlastsARestart(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	condition := func(status metav1.ConditionStatus, reason string, ago time.Duration) *metav1.Condition {
		return &metav1.Condition{Status: status, Reason: reason, LastTransitionTime: at(ago)}
	}
	for name, test := range map[string]struct {
		before *metav1.Condition
		woken  *metav1.Time
		want   time.Duration
	}{
		"nothing is known":             {nil, ptr.To(at(time.Hour)), 0},
		"it slept":                     {condition(metav1.ConditionFalse, v1alpha1.ReasonAsleep, time.Hour), ptr.To(at(2 * time.Hour)), 0},
		"a pod was ready":              {condition(metav1.ConditionTrue, v1alpha1.ReasonPodReady, time.Hour), ptr.To(at(2 * time.Hour)), 0},
		"its last pod failed":          {condition(metav1.ConditionFalse, v1alpha1.ReasonStarting, time.Minute), ptr.To(at(time.Hour)), time.Minute},
		"it was woken":                 {condition(metav1.ConditionFalse, v1alpha1.ReasonImageNotPulled, time.Hour), ptr.To(at(time.Minute)), time.Minute},
		"the clock of another machine": {condition(metav1.ConditionFalse, v1alpha1.ReasonStarting, -time.Hour), nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := cartElastiService()
			elastiService.Status.LastScaledUpTime = test.woken
			if got := startTime(elastiService, test.before, now); !got.Equal(now.Add(-test.want)) {
				t.Errorf("it began %s ago, want %s", now.Sub(got), test.want)
			}
		})
	}
}
