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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
)

// createTill makes the ElastiService till of another tenant's application, and returns it.
func (c *cluster) createTill(ports ...v1alpha1.ProxyPort) *v1alpha1.ElastiService {
	c.t.Helper()
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}})
	service := cartService()
	service.Name, service.UID, service.Spec.ClusterIP = "till", "till-service", "10.96.0.12"
	service.Spec.Ports = service.Spec.Ports[:1]
	c.create(service)
	c.setDeployment("till", 0, 0)
	till := cartElastiService()
	till.Name, till.UID, till.Spec.Service, till.Spec.ScaleTargetRef.Name = "till", "till-uid", "till", "till"
	till.Status.ProxyPorts = ports
	c.create(till)
	return till
}

// proxyPortsOf returns the proxy ports that the resolver slices of a Service refer to, by
// the name of the Service port.
func (c *cluster) proxyPortsOf(service string) map[string]int32 {
	c.t.Helper()
	found := map[string]int32{}
	for _, slice := range c.resolverSlices(service) {
		for _, port := range slice.Ports {
			found[*port.Name] = *port.Port
		}
	}
	return found
}

// Resolver slices outlive an ElastiService whose target cannot be woken, or not yet: its
// clients must not reach, and wake, what another tenant has. All proxy ports are in use.
func TestProxyPortsToWhichResolverSlicesLeadGoToNoOther(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*cluster){
		"the storage has lost its claims": func(c *cluster) { c.loseStore("cart") },
		"the storage has its claims":      func(c *cluster) { c.remove("cart") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.options.ProxyPortRange = utilnet.PortRange{Base: 10000, Size: 2}
			c.create(cartElastiService())
			stop := c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			stop()
			c.scaling.fail(errors.New("a webhook rejects it"))
			takeAway(c)
			c.createTill()
			c.start()
			c.eventuallyEvent(v1alpha1.ReasonTargetNotRestored)
			c.eventuallyCondition("till", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted)
			if referenced := c.proxyPortsOf("cart"); len(referenced) != 2 {
				t.Errorf("the resolver slice of cart refers to %v, want its 2 ports", referenced)
			}
			if claim, claimed := c.claims.Stored()[10000]; claimed && claim.Owner.Name != "cart" {
				t.Errorf("proxy port 10000 of cart was claimed for %s", claim.Owner.Name)
			}
		})
	}
}

// An older state of the storage has the proxy port of a resolver slice as that of another
// ElastiService.
func TestResolverSlicesLeaveTheProxyPortsOfOthers(t *testing.T) {
	t.Parallel()
	for name, takeAway := range map[string]func(*cluster){
		"lost":          func(c *cluster) { c.remove("cart") },
		"being deleted": func(c *cluster) { c.markDeleted("cart", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asleep(t)
			referenced := c.proxyPortsOf("cart")
			c.scaling.fail(errors.New("a webhook rejects it"))
			takeAway(c)
			till := c.createTill(v1alpha1.ProxyPort{Port: 80, Name: "http", ProxyPort: referenced["http"]})
			owner := v1alpha1.ProxyPortOwner{Namespace: shop, Name: "till", UID: till.UID}
			c.claims = proxyportstest.New(v1alpha1.ProxyPortClaimSpec{ProxyPort: referenced["http"], Port: 80, Owner: owner})
			c.options.Claims = c.claims
			c.start()
			c.eventually(func() string {
				if left := c.proxyPortsOf("cart"); len(left) != 1 || left["admin"] != referenced["admin"] {
					return fmt.Sprintf("the resolver slice of cart leads to %d alone, it does to %v", referenced["admin"], left)
				}
				return ""
			})
			c.eventuallyMode("till", v1alpha1.ModeProxy)
			if kept := c.elastiService("till").Status.ProxyPorts; len(kept) != 1 || kept[0].ProxyPort != referenced["http"] {
				t.Errorf("till has %v, want port %d as before", kept, referenced["http"])
			}
		})
	}
}
