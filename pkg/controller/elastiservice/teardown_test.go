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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

func (c *cluster) teardown() *Teardown {
	return &Teardown{Host: c.host, Scaling: c.scaling, Signers: c, Clock: c.options.Clock}
}

// asleepWithAutoscaler is a cluster whose controller put resolvers in the path
// and has ended.
func asleepWithAutoscaler(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	elastiService.Spec.MinTargetReplicas = ptr.To[int32](3)
	c.create(elastiService)
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	return c
}

// The ElastiServices play no part: their server may be removed.
func TestTeardownPutsTheClusterBack(t *testing.T) {
	t.Parallel()
	c := asleepWithAutoscaler(t)
	c.elasti.ClearActions()
	_, ctx := ktesting.NewTestContext(t)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	if err := c.teardown().Run(ctx); err != nil {
		t.Fatal(err)
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 3 {
		t.Errorf("the target has %d replicas, want its minimum of 3", replicas)
	}
	if names := c.serviceNames(); !slices.Equal(names, []string{"cart"}) {
		t.Errorf("the Services %v are left", names)
	}
	if left := c.resolverSlices("cart"); len(left) > 0 {
		t.Errorf("the resolver slices %v are left", left)
	}
	if actions := c.elasti.Actions(); len(actions) > 0 {
		t.Errorf("ElastiServices were requested: %v", actions)
	}
	if err := c.teardown().Run(ctx); err != nil {
		t.Errorf("running it again: %v", err)
	}
}

// The resolvers are about to go: a target that cannot be woken is no reason to
// leave traffic to them.
func TestTeardownGoesOnWithoutATargetThatCannotBeWoken(t *testing.T) {
	t.Parallel()
	c := asleepWithAutoscaler(t)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.scaling.fail(errors.New("a webhook rejects it"))
	_, ctx := ktesting.NewTestContext(t)
	err := c.teardown().Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "scale it by hand") || !strings.Contains(err.Error(), "a webhook rejects it") {
		t.Errorf("the error is %v", err)
	}
	if left := c.resolverSlices("cart"); len(left) > 0 {
		t.Errorf("the resolver slices %v are left", left)
	}

	// Running it again does the rest.
	c.scaling.fail(nil)
	if err := c.teardown().Run(ctx); err != nil {
		t.Errorf("running it again: %v", err)
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 3 {
		t.Errorf("the target has %d replicas after it could be woken, want 3", replicas)
	}
	if names := c.serviceNames(); !slices.Equal(names, []string{"cart"}) {
		t.Errorf("the Services %v are left", names)
	}
}

// The resolvers stay in other namespaces, and the target is tried to be woken again.
func TestTeardownKeepsTheResolversOfATargetThatCannotBeWoken(t *testing.T) {
	t.Parallel()
	c := asleepWithAutoscaler(t)
	c.scaling.fail(errors.New("a webhook rejects it"))
	_, ctx := ktesting.NewTestContext(t)
	teardown := c.teardown()
	teardown.KeepResolvers = true
	if err := teardown.Run(ctx); err == nil || !strings.Contains(err.Error(), "a webhook rejects it") {
		t.Errorf("the error is %v", err)
	}
	if replicas, left := c.scaling.replicas(t, "cart"), c.resolverSlices("cart"); replicas != 0 || len(left) != 1 {
		t.Errorf("there are %d replicas, and the resolver slices %v are left", replicas, left)
	}
	c.scaling.fail(nil)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	if err := teardown.Run(ctx); err != nil {
		t.Errorf("running it again: %v", err)
	}
	if replicas, left := c.scaling.replicas(t, "cart"), c.resolverSlices("cart"); replicas != 3 || len(left) > 0 {
		t.Errorf("there are %d replicas, and the resolver slices %v are left", replicas, left)
	}
}

func TestTeardownLeavesTheObjectsOfOthersAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := c.serviceNames()
	_, ctx := ktesting.NewTestContext(t)
	if err := c.teardown().Run(ctx); err != nil {
		t.Fatal(err)
	}
	if after := c.serviceNames(); !slices.Equal(after, before) {
		t.Errorf("there are the Services %v, were %v", after, before)
	}
	list, err := c.host.DiscoveryV1().EndpointSlices("elasti-system").List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		t.Errorf("the slices of the resolvers are %v (error: %v)", list, err)
	}
}

// Calls of some namespaces that hang do not keep a teardown from the objects of others.
func TestItemsOfOneNamespaceThatTakeLongDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	var namespaces []string
	for i := range 4 * teardownConcurrency {
		namespaces = append(namespaces, fmt.Sprintf("crowd-%d", i%4))
	}
	namespaces = append(namespaces, shop)
	done := make(chan struct{})
	err := forEach(namespaces, func(namespace *string) string { return *namespace }, func(namespace *string) error {
		if *namespace == shop {
			close(done)
			return nil
		}
		select {
		case <-done:
			return nil
		case <-time.After(waitTimeout):
			return errors.New("the other namespace waits")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// A namespace with any number of targets for which calls hang does not make a teardown
// last for longer than one of them does.
func TestTeardownGivesUpOnANamespaceWhoseCallsHang(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.scaling.hanging = []string{"crowd"}
	teardown := c.teardown()
	for i := range 2 * teardownConcurrency {
		elastiService := cartElastiService()
		elastiService.Namespace, elastiService.Name = "crowd", fmt.Sprintf("cart-%d", i)
		elastiService.Spec.ScaleTargetRef.Name = elastiService.Name
		elastiService.Status.ManagedTarget = resources.ManagedTargetOf(elastiService).Recorded()
		teardown.ElastiServices = append(teardown.ElastiServices, elastiService)
	}
	_, ctx := ktesting.NewTestContext(t)
	if err := teardown.Run(ctx); !errors.Is(err, errHanging) {
		t.Errorf("got %v", err)
	}
	if hung := c.scaling.hungCalls(); hung == 0 || hung > teardownConcurrency {
		t.Errorf("%d calls hung, want those of one round", hung)
	}
}
