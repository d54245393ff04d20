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

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// value is the query result of a fake Prometheus; the queries fail while it is empty.
type value struct{ atomic.Pointer[string] }

func newValue(initial string) *value {
	v := &value{}
	v.Store(&initial)
	return v
}

func (v *value) set(s string) { v.Store(&s) }
func (v *value) get() string  { return *v.Load() }

// sleepsBy returns an ElastiService of the Deployment "app" that sleeps by a value.
func sleepsBy(t *testing.T, name string, v *value) *v1alpha1.ElastiService {
	t.Helper()
	object := newSleepyElastiService(fmt.Sprintf(`{"query":"requests of %s","threshold":1,"serverAddress":%q}`, name, metricsOf(t, v.get).URL))
	object.Name, object.Spec.Service = name, name
	return object
}

// createSecondService creates the Service "grpc" of the pods of "app".
func createSecondService(t *testing.T, namespace string) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "grpc"},
		Spec: corev1.ServiceSpec{Selector: appLabels, Ports: []corev1.ServicePort{
			{Name: "grpc", Port: 9000, TargetPort: intstr.FromString("http"), AppProtocol: ptr.To("kubernetes.io/h2c")},
		}},
	}
	if _, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Service: %v", err)
	}
}

// hasResolvers reports whether resolvers are in the path of a Service.
func hasResolvers(ctx context.Context, t *testing.T, namespace, service string) bool {
	t.Helper()
	list, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		t.Errorf("listing the slices of Service %s: %v", service, err)
	}
	return slices.ContainsFunc(list.Items, func(slice discoveryv1.EndpointSlice) bool {
		return slice.Labels[discoveryv1.LabelManagedBy] == v1alpha1.SliceManagedBy && len(slice.Endpoints) > 0
	})
}

// waitForSleeping waits until the condition Sleeping of an ElastiService has a reason,
// and a message with a text.
func waitForSleeping(t *testing.T, namespace, name, reason, text string) {
	t.Helper()
	eventuallyWithin(t, sleepTimeout, fmt.Sprintf("Sleeping of %s has the reason %s and says %q", name, reason, text), func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		found := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionSleeping)
		if found == nil || found.Reason != reason || !strings.Contains(found.Message, text) {
			return fmt.Sprintf("it is %+v", found)
		}
		return ""
	})
}

// Two Services, of HTTP and of gRPC, on one Deployment: the one that is idle does not
// put the other one to sleep, and both have their resolvers when the target sleeps.
func TestTargetOfTwoElastiServicesSleepsWhenBothAreIdle(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	createSecondService(t, namespace)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	busy := newValue("1")
	createElastiService(t, namespace, sleepsBy(t, "grpc", busy))
	createElastiService(t, namespace, sleepsBy(t, "app", newValue("0")))

	waitForSleeping(t, namespace, "app", v1alpha1.ReasonSharedTarget, "ElastiService grpc")
	waitForSleeping(t, namespace, "grpc", v1alpha1.ReasonTriggerActive, "")
	object := readElastiService(t, namespace)
	if object.Status.SleepRequestedTime != nil || desiredReplicas(t, namespace) != 1 {
		t.Fatalf("the idle one put the busy one to sleep: %d replicas, %+v", desiredReplicas(t, namespace), object.Status)
	}
	if !slices.Equal(object.Status.TargetSharedWith, []string{"grpc"}) || !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionTargetShared) {
		t.Errorf("the target is shared with %v, %+v", object.Status.TargetSharedWith, object.Status.Conditions)
	}

	busy.set("0")
	waitForDesired(t, namespace, 0)
	for _, service := range []string{"app", "grpc"} {
		if !hasResolvers(t.Context(), t, namespace, service) {
			t.Errorf("the target sleeps without resolvers in the path of Service %s", service)
		}
	}
	for _, name := range []string{"app", "grpc"} {
		waitForSleeping(t, namespace, name, v1alpha1.ReasonAsleep, "")
	}

	if _, err := elastiServices(namespace).Wake(t.Context(), "grpc", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking through one: %v", err)
	}
	busy.set("1")
	for _, name := range []string{"app", "grpc"} {
		eventually(t, name+" is awake", func(ctx context.Context) string {
			object, err := elastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if !meta.IsStatusConditionFalse(object.Status.Conditions, v1alpha1.ConditionSleeping) {
				return fmt.Sprintf("its conditions are %+v", object.Status.Conditions)
			}
			return ""
		})
	}
}

// The deletion of one of two ElastiServices while the target sleeps wakes the target, for
// the requests that resolvers hold for it. The other ElastiService stays managed.
func TestDeletionOfOneOfTwoWakesTheTarget(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createSecondService(t, namespace)
	createElastiService(t, namespace, newElastiService("app"))
	second := newElastiService("grpc")
	second.Spec.Service = "grpc"
	createElastiService(t, namespace, second)
	for _, service := range []string{"app", "grpc"} {
		eventually(t, "resolvers are in the path of "+service, func(ctx context.Context) string {
			if !hasResolvers(ctx, t, namespace, service) {
				return "they are not"
			}
			return ""
		})
	}
	if err := elastiServices(namespace).Delete(t.Context(), "grpc", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting one: %v", err)
	}
	waitForDesired(t, namespace, 1)
	if !hasResolvers(t.Context(), t, namespace, "grpc") {
		t.Error("the resolvers left before a pod was ready")
	}
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	eventually(t, "it is deleted", func(ctx context.Context) string {
		if _, err := elastiServices(namespace).Get(ctx, "grpc", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it gives %v", err)
		}
		return ""
	})
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
}

// A trigger that fails during the scale-down keeps the target awake.
func TestTriggerThatTurnsUnknownDuringAScaleDownEndsIt(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	requests := newValue("0")
	object := sleepsBy(t, "app", requests)
	object.Spec.Proxy = &v1alpha1.ProxySpec{ConvergenceSeconds: ptr.To[int32](30)}
	createElastiService(t, namespace, object)
	waitForRequest := func(requested bool) {
		t.Helper()
		eventuallyWithin(t, sleepTimeout, fmt.Sprintf("sleep is requested: %v", requested), func(context.Context) string {
			if got := readElastiService(t, namespace).Status.SleepRequestedTime; (got != nil) != requested {
				return fmt.Sprintf("it was requested at %v", got)
			}
			return ""
		})
	}
	waitForRequest(true)
	requests.set("")
	waitForRequest(false)
	waitForEvent(t, namespace, v1alpha1.ReasonSleepCalledOff)
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonTriggerUnknown, "")
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("without data the target was scaled to %d", replicas)
	}
}

// Requests that a resolver holds or forwards keep a target awake regardless of the cooldown
// and the triggers.
func TestHeldRequestsKeepATargetUpWithoutACooldown(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	requests := newValue("1")
	createElastiService(t, namespace, sleepsBy(t, "app", requests))
	waitForSleeping(t, namespace, "app", v1alpha1.ReasonTriggerActive, "")

	report := func(open int32) {
		t.Helper()
		activity := &v1alpha1.ActivityReport{Spec: v1alpha1.ActivityReportSpec{Resolver: "resolver-of-the-test", Open: open, ObservedMilliseconds: 1000}}
		if _, err := elastiServices(namespace).ReportActivity(t.Context(), "app", activity, metav1.CreateOptions{}); err != nil {
			t.Fatalf("reporting activity: %v", err)
		}
	}
	report(1)
	requests.set("0")
	eventuallyWithin(t, sleepTimeout, "the requests are why the target is awake", func(context.Context) string {
		report(1)
		found := meta.FindStatusCondition(readElastiService(t, namespace).Status.Conditions, v1alpha1.ConditionTriggersHealthy)
		sleeping := meta.FindStatusCondition(readElastiService(t, namespace).Status.Conditions, v1alpha1.ConditionSleeping)
		if desiredReplicas(t, namespace) != 1 {
			t.Fatal("the target was put to sleep with requests held")
		}
		if sleeping == nil || sleeping.Reason != v1alpha1.ReasonTraffic {
			return fmt.Sprintf("it is %+v, %+v", sleeping, found)
		}
		return ""
	})
	report(0)
	waitForDesired(t, namespace, 0)
}

// The API server rejects the scale to zero when the target has changed since its scale was
// read.
func TestScaleToZeroFailsWhenTheTargetHasChanged(t *testing.T) {
	namespace := newNamespace(t)
	createDeployment(t, namespace, 1)
	client, err := scaling.NewClient(scaling.Options{Config: shared.Admin})
	if err != nil {
		t.Fatal(err)
	}
	target := scaling.Target{Namespace: namespace, APIVersion: "apps/v1", Kind: "Deployment", Name: "app"}
	stale, err := client.Get(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	scaleTarget(t, namespace, 2)
	if err := client.ScaleToZero(t.Context(), target, stale); !apierrors.IsConflict(err) {
		t.Errorf("scaling by a stale check gives %v, want a conflict", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 2 {
		t.Errorf("the target has %d replicas, want 2", replicas)
	}
	eventually(t, "it is scaled by a new check", func(ctx context.Context) string {
		// The Deployment controller writes the object as well.
		current, err := client.Get(ctx, target)
		if err == nil {
			err = client.ScaleToZero(ctx, target, current)
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("the target has %d replicas, want 0", replicas)
	}
}
