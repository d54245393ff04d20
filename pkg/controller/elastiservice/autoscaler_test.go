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
	"errors"
	"slices"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

// scaledToZero changes a ScaledObject to one that scales to zero by itself.
func scaledToZero(object *unstructured.Unstructured) *unstructured.Unstructured {
	unstructured.RemoveNestedField(object.Object, "spec", "minReplicaCount")
	return object
}

func TestAutoscalerHasStopped(t *testing.T) {
	const scaler = "keda-hpa-cart"
	running := target.Autoscaler{}
	annotated := target.Autoscaler{PausedByController: true}
	stopped := target.Autoscaler{PausedByController: true, Paused: true}
	scaling := target.Autoscaler{PausedByController: true, Paused: true, Scaler: scaler}
	for name, test := range map[string]struct {
		autoscaler   target.Autoscaler
		pausedBefore bool
		// present is the HorizontalPodAutoscaler that there is.
		present string
		want    bool
	}{
		"running":                        {running, false, "", false},
		"annotated, in the middle of it": {annotated, false, "", false},
		"paused for something else":      {target.Autoscaler{Paused: true}, false, "", false},
		"stopped":                        {stopped, false, "", true},
		"called itself paused before, and scales still":    {scaling, true, scaler, false},
		"called itself paused before, and has stopped":     {scaling, true, "", true},
		"called itself paused before, and never scaled":    {stopped, true, "", true},
		"called itself paused before, not annotated yet":   {target.Autoscaler{Paused: true, Scaler: scaler}, true, "", false},
		"did not call itself paused before":                {scaling, false, scaler, true},
		"another one of the namespace has not stopped yet": {scaling, true, "keda-hpa-other", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Controller{host: hostfake.NewClientset()}
			if test.present != "" {
				c.host = hostfake.NewClientset(&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: test.present}})
			}
			p := &pass{elastiService: cartElastiService(), state: &state{pausedBefore: test.pausedBefore}}
			p.autoscaler.Autoscaler = &test.autoscaler
			if got := c.hasStopped(t.Context(), p); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
	c := &Controller{}
	if c.hasStopped(t.Context(), &pass{observed: observed{autoscaler: target.AutoscalerObservation{Pending: true}}}) {
		t.Error("stopped although nothing is known of it")
	}
	if !c.hasStopped(t.Context(), &pass{observed: observed{autoscaler: target.AutoscalerObservation{Problem: errors.New("not there")}}}) {
		t.Error("waits for an autoscaler that is not there")
	}
}

func TestKeepsTargetAwake(t *testing.T) {
	now := time.Now()
	ago := func(ago time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(-ago))) }
	triggers := []v1alpha1.ScaleTrigger{{Type: "traffic"}}
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.ElastiService)
		keep   bool
		left   time.Duration
	}{
		{"puts it to sleep by itself", func(e *v1alpha1.ElastiService) { e.Spec.Triggers = triggers }, true, 0},
		{"puts it to sleep by itself, woken long ago", func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers, e.Status.LastScaledUpTime = triggers, ago(time.Hour)
		}, true, 0},
		{"never puts it to sleep", func(*v1alpha1.ElastiService) {}, false, 0},
		{"never puts it to sleep, but has just woken it", func(e *v1alpha1.ElastiService) { e.Status.LastScaledUpTime = ago(time.Minute) }, true, 4 * time.Minute},
		{"never puts it to sleep, and the cooldown is over", func(e *v1alpha1.ElastiService) { e.Status.LastScaledUpTime = ago(5 * time.Minute) }, false, 0},
		{"woken by a replica whose clock is a little ahead", func(e *v1alpha1.ElastiService) { e.Status.LastScaledUpTime = ago(-clockSkew) }, true, 5 * time.Minute},
		{"woken in the future", func(e *v1alpha1.ElastiService) { e.Status.LastScaledUpTime = ago(-time.Hour) }, false, 0},
		{"never puts it to sleep, and its wake is not in the status yet", func(e *v1alpha1.ElastiService) {
			e.Status.Replicas, e.Status.LastScaledUpTime = 0, ago(time.Hour)
		}, true, 5 * time.Minute},
		{"has not reported on it yet", func(e *v1alpha1.ElastiService) { e.Status.Replicas, e.Status.Conditions = 0, nil }, false, 0},
		{"would put it to sleep", func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers = triggers
			e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDryRun, Status: metav1.ConditionTrue}}
		}, false, 0},
		{"does not have the Service", func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers, e.Status.PrivateService = triggers, ""
		}, false, 0},
		{"has no private Service yet", func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers, e.Status.PrivateService = triggers, ""
			e.Status.ProxyPorts = []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10000}}
		}, true, 0},
		{"is being deleted", func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers, e.DeletionTimestamp = triggers, ago(time.Second)
		}, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			elastiService := cartElastiService()
			elastiService.Spec.CooldownPeriod = ptr.To[int32](300)
			elastiService.Status.PrivateService, elastiService.Status.Replicas = "elasti-cart-pvt", 1
			elastiService.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTargetFound, Status: metav1.ConditionTrue}}
			test.change(elastiService)
			if keep, left := keepsTargetAwake(elastiService, now); keep != test.keep || left != test.left {
				t.Errorf("got %t for %s, want %t for %s", keep, left, test.keep, test.left)
			}
		})
	}
}

// An autoscaler that scales to zero by itself does not undo that a target is
// awake, whichever ElastiService of the target says so; and it is let go when
// none does.
func TestAutoscalerThatScalesToZeroIsKeptAwakeAndLetGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 1, 1)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.put(c.dynamic.Tracker(), scaledToZero(targettest.ScaledObject(shop, "cart", nil, false)))
	other := cartService()
	other.Name = "grpc"
	c.create(other)
	for name, triggers := range map[string][]v1alpha1.ScaleTrigger{"cart": {{Type: "prometheus"}}, "grpc": nil} {
		elastiService := cartElastiService()
		elastiService.Name, elastiService.UID, elastiService.Spec.Service, elastiService.Spec.Triggers = name, "", name, triggers
		elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
		c.create(elastiService)
	}
	c.start()
	seen := func(list *[]string) func() bool {
		return func() bool {
			c.scaling.mu.Lock()
			defer c.scaling.mu.Unlock()
			return slices.Contains(*list, "cart")
		}
	}
	await := func(what string, condition func() bool) {
		t.Helper()
		c.eventually(func() string {
			if !condition() {
				return what
			}
			return ""
		})
	}
	for _, name := range []string{"cart", "grpc"} {
		c.eventuallyCondition(name, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse, v1alpha1.ReasonAutoscalerScalesToZero)
	}
	await("the autoscaler to be kept from scaling to zero", seen(&c.scaling.keptAwake))

	c.put(c.dynamic.Tracker(), scaledToZero(targettest.ScaledObject(shop, "cart", map[string]string{
		v1alpha1.AnnotationPausedScaleIn: "{}", "autoscaling.keda.sh/paused-scale-in": "true",
	}, true)))
	c.scaling.mu.Lock()
	c.scaling.keptAwake, c.scaling.resumed = nil, nil
	c.scaling.mu.Unlock()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Spec.Triggers = nil
		elastiService.Generation++
	})
	// Each time that it is kept awake, it is resumed too.
	await("the autoscaler to go on without being kept awake", func() bool {
		c.scaling.mu.Lock()
		defer c.scaling.mu.Unlock()
		return len(c.scaling.resumed) > len(c.scaling.keptAwake)
	})
}

// Of two ElastiServices that share an autoscaler, the one that keeps it from scaling to zero
// stops doing so. Nothing of the other one, nor of the autoscaler, changes with that.
func TestAutoscalerThatOneElastiServiceLeavesIsLetGoForTheOther(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*cluster){
		"another spec": func(c *cluster) {
			c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
				elastiService.Spec.Autoscaler = nil
				elastiService.Generation++
			})
		},
		"deleted": func(c *cluster) { c.markDeleted("cart", 0) },
		"lost":    func(c *cluster) { c.remove("cart") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.setDeployment("cart", 1, 1)
			c.put(c.dynamic.Tracker(), scaledToZero(targettest.ScaledObject(shop, "cart", map[string]string{
				v1alpha1.AnnotationPausedScaleIn: "{}", "autoscaling.keda.sh/paused-scale-in": "true",
			}, true)))
			grpc := cartService()
			grpc.Name = "cart-grpc"
			c.create(grpc)
			for _, elastiService := range []*v1alpha1.ElastiService{cartElastiService(), cartGRPC()} {
				if elastiService.Name == "cart" {
					elastiService.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: "prometheus"}}
				}
				elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
				c.setEndpoints(shop, elastiService.Spec.Service, "10.1.0.1")
				c.create(elastiService)
			}
			c.startAwake()
			for _, name := range []string{"cart", "cart-grpc"} {
				c.eventuallyCondition(name, v1alpha1.ConditionAutoscalerFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
				c.sync(name)
			}
			c.scaling.mu.Lock()
			c.scaling.keptAwake, c.scaling.resumed = nil, nil
			c.scaling.mu.Unlock()
			leave(c)
			c.eventually(func() string {
				c.scaling.mu.Lock()
				defer c.scaling.mu.Unlock()
				// Each time that it is kept awake, it is resumed too.
				if len(c.scaling.resumed) <= len(c.scaling.keptAwake) {
					return "the autoscaler to go on without being kept awake"
				}
				return ""
			})
		})
	}
}
