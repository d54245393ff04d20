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
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
)

// scaleDeployment scales the Deployment "cart" as a manager.
func (c *cluster) scaleDeployment(replicas int32, manager string) {
	c.t.Helper()
	c.version++
	object := targettest.Deployment(shop, "cart", replicas, replicas, c.version)
	if err := unstructured.SetNestedSlice(object.Object, []any{targettest.ManagedFields(manager, "scale", "2026-01-01T00:00:00Z", "spec", "replicas")}, "metadata", "managedFields"); err != nil {
		c.t.Fatal(err)
	}
	c.put(c.dynamic.Tracker(), object)
}

// eventuallyStatusReplicas waits until the status of an ElastiService has a number of
// replicas.
func (c *cluster) eventuallyStatusReplicas(name string, want int32) {
	c.t.Helper()
	c.eventually(func() string {
		if got := c.elastiService(name).Status.Replicas; got != want {
			return fmt.Sprintf("%d replicas in the status, which has %d", want, got)
		}
		return ""
	})
}

func TestScalingByOthersIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	reported := make(chan string, 10)
	c.options.ScaledUp = func(_ types.NamespacedName, by string, _ time.Duration) { reported <- by }
	c.setDeployment("cart", 2, 2)
	c.create(cartElastiService())
	c.start()
	eventuallyReplicas := func(want int32) {
		t.Helper()
		c.eventuallyStatusReplicas("cart", want)
	}
	eventuallyReplicas(2)
	c.scaleDeployment(0, v1alpha1.FieldManager)
	eventuallyReplicas(0)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.scaleDeployment(1, v1alpha1.FieldManager)
	eventuallyReplicas(1)
	c.scaleDeployment(0, v1alpha1.FieldManager)
	eventuallyReplicas(0)
	c.scaleDeployment(3, "their-operator")
	eventuallyReplicas(3)
	c.scaleDeployment(4, "their-operator")
	eventuallyReplicas(4)
	if len(reported) != 1 {
		t.Fatalf("reported %d times, want once", len(reported))
	}
	if by := <-reported; by != "their-operator" {
		t.Errorf("reported of %s", by)
	}
}

// An autoscaler that spec.autoscaler does not name undoes each wake.
func TestScalingToZeroByOthersIsReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.create(cartElastiService())
	c.start()
	for _, manager := range []string{"their-autoscaler", "kubectl"} {
		c.scaleDeployment(2, v1alpha1.FieldManager)
		c.eventuallyStatusReplicas("cart", 2)
		c.scaleDeployment(0, manager)
		c.eventuallyEventWith(corev1.EventTypeNormal, v1alpha1.ReasonScaledToZeroByOther, manager+" scaled the target to zero")
		c.eventuallyStatusReplicas("cart", 0)
	}
}

// A watch that is far behind shows a sleep, and the controller's wake from it, long after both:
// what tells whose wake it was is that the target had been seen to be up before.
func TestAWakeOfTheControllerThatIsObservedLateIsStillItsOwn(t *testing.T) {
	up := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		state state
		want  time.Time
	}{
		"seen up, and the sleep late": {state{upSince: up, zeroSince: up.Add(time.Minute)}, up},
		"seen up a moment ago":        {state{upSince: up, zeroSince: up.Add(time.Second)}, up.Add(time.Second - observationDelay)},
		"never seen up":               {state{zeroSince: up}, up.Add(-observationDelay)},
	} {
		if got := test.state.asleepAfter(); !got.Equal(test.want) {
			t.Errorf("%s: put to sleep after %s, want %s", name, got, test.want)
		}
	}
}

// No manager owns the replicas after a scaling from zero through the subresource.
func TestScalingThroughTheSubresourceIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		others, othersWake bool
		want               string
	}{
		"the controller":                  {false, false, ""},
		"another client":                  {true, false, v1alpha1.CallerUnknown},
		"maybe that of another replica's": {true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.scaling.others, c.options.OthersWake = test.others, test.othersWake
			reported := make(chan string, 10)
			c.options.ScaledUp = func(_ types.NamespacedName, by string, _ time.Duration) { reported <- by }
			c.setDeployment("cart", 2, 2)
			c.create(cartElastiService())
			c.start()
			for _, replicas := range []int32{2, 0, 1} {
				c.setDeployment("cart", replicas, replicas)
				c.eventually(func() string {
					if c.elastiService("cart").Status.Replicas != replicas {
						return "the replicas in the status"
					}
					return ""
				})
			}
			close(reported)
			if by := <-reported; by != test.want {
				t.Errorf("reported of %q, want %q", by, test.want)
			}
		})
	}
}
