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
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// blog is a second namespace.
const blog = "blog"

// forbidLists has lists of resources in a namespace be forbidden until allow is called.
func (c *cluster) forbidLists(namespace string, resources ...string) (allow func()) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "", errors.New("no RoleBinding"))
	return c.failLists(namespace, forbidden, resources...)
}

// failLists has lists of resources in a namespace fail until end is called.
func (c *cluster) failLists(namespace string, failing error, resources ...string) (end func()) {
	ended := &atomic.Bool{}
	for _, resource := range resources {
		informerstest.React(&c.host.Fake, "list", resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetNamespace() != namespace || ended.Load() {
				return false, nil, nil
			}
			return true, nil, failing
		})
	}
	return func() { ended.Store(true) }
}

// createInBlog creates an ElastiService "post" in the second namespace, and its Service.
func (c *cluster) createInBlog() {
	c.t.Helper()
	service := cartService()
	service.Namespace, service.Name, service.Spec.ClusterIP = blog, "post", "10.96.0.13"
	c.create(service)
	post := cartElastiService()
	post.Namespace, post.Name, post.UID, post.Spec.Service, post.Spec.ScaleTargetRef.Name = blog, "post", "post-uid", "post", "post"
	c.create(post)
}

// eventuallyPost waits until the ElastiService "post" is as wanted.
func (c *cluster) eventuallyPost(wanted string, is func(*v1alpha1.ElastiService) bool) {
	c.t.Helper()
	c.eventually(func() string {
		post, err := c.elasti.ElastiV1alpha1().ElastiServices(blog).Get(c.t.Context(), "post", metav1.GetOptions{})
		if err != nil || !is(post) {
			return wanted
		}
		return ""
	})
}

func readyReason(elastiService *v1alpha1.ElastiService) string {
	if ready := findCondition(elastiService, v1alpha1.ConditionReady); ready != nil {
		return ready.Reason
	}
	return ""
}

func TestNamespaceThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, forbidden := range []string{"services", "endpointslices"} {
		t.Run(forbidden, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.options.Namespaces = []string{shop, blog}
			allow := c.forbidLists(blog, forbidden)
			c.createInBlog()
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			c.eventuallyPost("Ready to say that the namespace cannot be read", func(post *v1alpha1.ElastiService) bool {
				return readyReason(post) == v1alpha1.ReasonNamespaceUnreadable
			})
			allow()
			c.eventuallyPost("the namespace to be worked on once it can be read", func(post *v1alpha1.ElastiService) bool {
				return post.Status.Mode == v1alpha1.ModeProxy && readyReason(post) != v1alpha1.ReasonNamespaceUnreadable
			})
		})
	}
}

// What is not known of a namespace that cannot be read is no reason to change anything
// there.
func TestNamespaceThatCannotBeReadIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*cluster){
		"as it is": func(*cluster) {},
		"deleted":  func(c *cluster) { c.markDeleted("cart", time.Hour) },
		"lost":     func(c *cluster) { c.remove("cart") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
			before := c.elastiService("cart").Status
			c.options.Namespaces = []string{shop, blog}
			c.createInBlog()
			allow := c.forbidLists(shop, "endpointslices")
			takeAway(c)
			c.host.ClearActions()
			c.dynamic.ClearActions()
			c.start()
			c.eventuallyPost("the other namespace to be worked on", func(post *v1alpha1.ElastiService) bool { return post.Status.Mode == v1alpha1.ModeProxy })
			if name != "lost" {
				c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNamespaceUnreadable)
				after := c.elastiService("cart").Status
				if after.Mode != before.Mode || !slices.Equal(after.ProxyPorts, before.ProxyPorts) || after.PrivateService != before.PrivateService || after.ManagedTarget == nil {
					t.Errorf("the status is %+v, was %+v", after, before)
				}
			}
			for _, action := range slices.Concat(c.host.Actions(), c.dynamic.Actions()) {
				if verb := action.GetVerb(); action.GetNamespace() == shop && verb != "get" && verb != "list" && verb != "watch" {
					t.Errorf("%s %s", verb, action.GetResource().Resource)
				}
			}
			allow()
			if name == "as it is" {
				c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
				return
			}
			c.eventuallyReplicas(2)
		})
	}
}

// The RoleBinding of a namespace is deleted with it, in either order.
func TestDeletedNamespaceThatCannotBeReadIsNotHeldUp(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.options.Namespaces = []string{shop, blog}
	c.forbidLists(shop, "services", "endpointslices")
	c.start()
	c.markDeleted("cart", time.Hour)
	c.eventuallyReleased("cart")
}

// Caches that are only late say nothing of a namespace: the target is woken all the same.
func TestDeletionWaitsForCachesThatAreLate(t *testing.T) {
	t.Parallel()
	c := asleep(t)
	c.options.Namespaces = []string{shop, blog}
	end := c.failLists(shop, apierrors.NewInternalError(errors.New("not now")), "services")
	c.markDeleted("cart", time.Hour)
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNamespaceUnreadable)
	if len(c.elastiService("cart").Finalizers) == 0 {
		t.Error("the finalizer is removed")
	}
	end()
	c.eventuallyReplicas(2)
	c.eventuallyReleased("cart")
}

func TestTeardownGoesOnWithoutANamespaceThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, forbidden := range []string{"services", "endpointslices"} {
		t.Run(forbidden, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			c.setEndpoints(shop, "cart", "10.1.0.1")
			c.forbidLists(blog, forbidden)
			teardown := c.teardown()
			teardown.Namespaces = []string{blog, shop}
			_, ctx := ktesting.NewTestContext(t)
			if err := teardown.Run(ctx); err == nil || !strings.Contains(err.Error(), blog) {
				t.Errorf("the teardown returns %v, want an error that names the namespace %s", err, blog)
			}
			if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
				t.Errorf("the target in the other namespace has %d replicas, want 2", replicas)
			}
			if left := c.resolverSlices("cart"); len(left) > 0 {
				t.Errorf("the resolver slices %v are left in the other namespace", left)
			}
		})
	}
}

func TestWaitingForCachesEndsWithTheElastiService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Namespaces = []string{shop, blog}
	c.forbidLists(shop, "services")
	controller, err := New(c.options)
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	waiting := func() int {
		controller.unsynced.mu.Lock()
		defer controller.unsynced.mu.Unlock()
		return len(controller.unsynced.waiting[shop])
	}
	c.create(cartElastiService())
	c.eventually(func() string {
		if waiting() != 1 {
			return "the ElastiService to wait for the caches"
		}
		return ""
	})
	c.remove("cart")
	removed := time.Now()
	c.eventually(func() string {
		if waiting() == 0 && controller.deletions.last(types.NamespacedName{Namespace: shop, Name: "cart"}) == nil {
			return ""
		}
		// The fake API server loses what happens between a list and the watch that follows.
		if time.Since(removed) > time.Second {
			c.create(cartElastiService())
			c.remove("cart")
			removed = time.Now()
		}
		return "nothing to be left of the ElastiService that was deleted"
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
