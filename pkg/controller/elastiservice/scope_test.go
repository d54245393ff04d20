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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestKindInstalledLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.scaling.forgetKind("Deployment")
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionFalse, v1alpha1.ReasonKindNotServed)
	c.scaling.serveKind("Deployment", "deployments")
	c.eventuallyCondition("cart", v1alpha1.ConditionTargetFound, metav1.ConditionTrue, v1alpha1.ReasonFound)
}

func TestOnlyTheNamespacesInScope(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Namespaces = []string{shop}
	elsewhere := cartElastiService()
	elsewhere.Namespace, elsewhere.UID = "elsewhere", "elsewhere-uid"
	c.create(elsewhere)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	for _, action := range slices.Concat(c.host.Actions(), c.elasti.Actions(), c.dynamic.Actions()) {
		if action.GetVerb() == "list" && action.GetResource().Resource == "elastiservices" {
			// Those in namespaces that were worked on before are found.
			continue
		}
		if namespace := action.GetNamespace(); namespace != shop && (namespace != "elasti-system" || action.GetResource().Resource != "endpointslices") {
			t.Errorf("%s %s in namespace %q", action.GetVerb(), action.GetResource().Resource, namespace)
		}
	}
}

// A namespace that is taken off the list of those that are worked on is left as it
// was: its targets awake, nothing of the product in it, and no finalizer.
func TestNamespaceThatIsNotWorkedOnAnyMoreIsLeft(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if len(c.elastiService("cart").Finalizers) == 0 {
			return "the finalizer"
		}
		return ""
	})
	stop()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.Status.Conditions = append(elastiService.Status.Conditions, metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue, Reason: "ByATool"})
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = ptr.To(metav1.Now()), "user alice"
	})
	c.options.Namespaces = []string{"other"}
	c.start()
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target has %d replicas, want 2", replicas)
	}
	if found := c.resolverSlices("cart"); len(found) > 0 || !slices.Equal(c.serviceNames(), []string{"cart"}) {
		t.Errorf("left behind: %v, Services %v", found, c.serviceNames())
	}
	status := c.elastiService("cart").Status
	if len(status.ProxyPorts) > 0 || status.PrivateService != "" || status.Mode != "" {
		t.Errorf("resolvers still act on %+v", status)
	}
	if status.ManagedTarget != nil || status.SleepRequestedTime != nil || status.SleepRequestedBy != "" {
		t.Errorf("left behind: the record of %v, and the request for sleep by %q", status.ManagedTarget, status.SleepRequestedBy)
	}
	if len(status.Conditions) != 1 || status.Conditions[0].Type != "Audited" {
		t.Errorf("the conditions are %+v, want that of the tool alone", status.Conditions)
	}
}

// Nothing but the resolvers would wake it.
func TestTargetThatCannotBeWokenKeepsTheResolversOfALeftNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	stop()
	c.scaling.fail(errors.New("denied"))
	c.options.Namespaces = []string{"other"}
	c.start()
	// More than the attempts of one teardown: another one has begun.
	c.eventually(func() string {
		if c.scaling.attempts() < 10 {
			return "attempts to wake the target"
		}
		return ""
	})
	if !hasFinalizer(c.elastiService("cart")) || len(c.resolverSlices("cart")) == 0 {
		t.Errorf("the target sleeps, and the finalizers are %v, the resolver slices %v", c.elastiService("cart").Finalizers, c.resolverSlices("cart"))
	}
	c.scaling.fail(nil)
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target has %d replicas, want 2", replicas)
	}
}

// A replica that ends in the course of an upgrade accepts an ElastiService in a namespace
// that the next leader has left already.
func TestElastiServiceThatComesAfterItsNamespaceWasLeftIsReleased(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.options.Namespaces = []string{"other"}
	c.create(cartElastiService())
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Finalizers = []string{v1alpha1.Finalizer} })
	c.start()
	c.eventuallyReleased("cart")
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) {
		elastiService.UID, elastiService.Finalizers = "another", []string{v1alpha1.Finalizer}
	})
	c.eventuallyReleased("cart")
}
