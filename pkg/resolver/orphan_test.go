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

package resolver

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// responding returns the address of a pod that responds with a text.
func responding(t *testing.T, text string) string {
	t.Helper()
	return resolvertest.ListenHTTP(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

// deleteSlice deletes the EndpointSlice of the private Service of an ElastiService, as the
// controller does when it cleans up.
func (c *cluster) deleteSlice(name string) {
	c.t.Helper()
	if err := c.kube.DiscoveryV1().EndpointSlices("shop").Delete(c.t.Context(), name+"-slice", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// newOrphan returns a cluster whose storage has lost the ElastiService cart, with a proxy
// port and a target at zero, for longer than ports linger.
func newOrphan(t *testing.T, port int32) (*cluster, *v1alpha1.ElastiService) {
	t.Helper()
	last := freePort(t)
	cart, end := elastiService("cart", port), elastiService("end", last)
	cart.UID = "cart-uid"
	c := newCluster(t, func(o *Options) { o.Drain.PortLinger = 10 * time.Millisecond }, cart, end)
	c.apply(slice(cart, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK && listening(t, last) })
	c.apply(slice(cart, true))
	for _, name := range []string{"cart", "end"} {
		if err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// It goes after what was deleted before it.
	c.eventually(func() bool { return !listening(t, last) })
	return c, cart
}

// The controller wakes the targets of ElastiServices that the storage has lost one after
// the other, and deletes their private Services last.
func TestPortOfALostElastiServiceStaysWhileItsPrivateServiceDoes(t *testing.T) {
	port := freePort(t)
	c, cart := newOrphan(t, port)
	type response struct {
		status int
		body   string
		err    error
	}
	held := make(chan response, 1)
	go func() {
		status, body, err := fetch(port, "/")
		held <- response{status, body, err}
	}()
	c.eventually(func() bool { return c.gauge("elasti_resolver_queued_count", "source", "cart") == 1 })
	c.apply(slice(cart, true, responding(t, "woken")))
	if got := <-held; got.err != nil || got.status != http.StatusOK || got.body != "woken" {
		t.Errorf("the held request got %d %q %v", got.status, got.body, got.err)
	}
	c.deleteSlice("cart")
	c.eventually(func() bool { return !listening(t, port) })
}

func TestPortOfALostElastiServiceIsThatOfTheOneThatClaimsIt(t *testing.T) {
	for name, claimant := range map[string]string{"another one": "till", "one of its name": "cart"} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			c, _ := newOrphan(t, port)
			claiming := elastiService(claimant, port)
			claiming.UID = "claiming-uid"
			if err := c.elasti.Tracker().Add(claiming); err != nil {
				t.Fatal(err)
			}
			c.apply(slice(claiming, true, responding(t, "claiming")))
			c.eventually(func() bool { _, body, _ := fetch(port, "/"); return body == "claiming" })
		})
	}
}
