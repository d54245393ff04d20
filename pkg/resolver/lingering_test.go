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
	"io"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// Deleting an ElastiService makes no request fail: what still comes goes to the pods
// that were last known, and gets a request to reconnect, until the port closes.
func TestDeletedServiceLingers(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, func(o *Options) { o.Drain.PortLinger = time.Second }, es)
	c.apply(slice(es, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == 200 })
	deleted := time.Now()
	if err := c.elasti.ElastiV1alpha1().ElastiServices("shop").Delete(t.Context(), "cart", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	query := func() (status int, closes bool, err error) {
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return 0, false, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, response.Close, err
	}
	c.eventually(func() bool { _, closes, _ := query(); return closes })
	if err := c.kube.DiscoveryV1().EndpointSlices("shop").Delete(t.Context(), "cart-slice", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool {
		status, _, err := query()
		if err != nil && time.Since(deleted) < time.Second {
			t.Errorf("%s after the deletion: %v", time.Since(deleted), err)
		}
		if err == nil && status != http.StatusOK {
			t.Errorf("%s after the deletion: status %d", time.Since(deleted), status)
		}
		return err != nil
	})
}

// A port whose name or protocol changes is never closed.
func TestChangedPortStaysOpen(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	c := newCluster(t, nil, es)
	c.apply(slice(es, true, pod(t)))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == 200 })
	for i := range 20 {
		es.Status.ProxyPorts[0].AppProtocol = []string{"http", ""}[i%2]
		if _, err := c.elasti.ElastiV1alpha1().ElastiServices("shop").UpdateStatus(t.Context(), es, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if status, _, err := fetch(port, "/"); status != 200 {
			t.Fatalf("got %d, %v", status, err)
		}
	}
}

// TestPortFollowsWhatIsWantedWhenChangesCross changes the protocol of a port and
// back, moves a port and deletes its ElastiService, all within the time that
// ports linger.
func TestPortFollowsWhatIsWantedWhenChangesCross(t *testing.T) {
	const linger = 300 * time.Millisecond
	kept, first, second, last := freePort(t), freePort(t), freePort(t), freePort(t)
	cart, till, end := elastiService("cart", kept), elastiService("till", first), elastiService("end", last)
	c := newCluster(t, func(o *Options) { o.Drain.PortLinger = linger }, cart, till, end)
	client := c.elasti.ElastiV1alpha1().ElastiServices("shop")
	update := func(es *v1alpha1.ElastiService) {
		t.Helper()
		if _, err := client.UpdateStatus(t.Context(), es, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, protocol := range []string{"http", ""} {
		cart.Status.ProxyPorts[0].AppProtocol = protocol
		update(cart)
	}
	till.Status.ProxyPorts[0].ProxyPort = second
	update(till)
	c.eventually(func() bool { return listening(t, second) })
	for _, name := range []string{"till", "end"} {
		if err := client.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// It goes after all that was changed before it.
	c.eventually(func() bool { return !listening(t, last) })
	for port, want := range map[int32]bool{kept: true, first: false, second: false} {
		c.eventually(func() bool { return listening(t, port) == want })
	}
	if got := c.metric("elasti_resolver_listeners"); got != 1 {
		t.Errorf("%v ports are open, want one", got)
	}
}

// TestClaimOnThePortOfAnotherGetsNothing has an ElastiService claim the proxy
// port of another, and then deletes it.
func TestClaimOnThePortOfAnotherGetsNothing(t *testing.T) {
	port, own := freePort(t), freePort(t)
	victim, thief := elastiService("victim", port), elastiService("thief", own)
	c := newCluster(t, nil, victim, thief)
	c.apply(slice(victim, true, pod(t)))
	c.apply(slice(thief, true, resolvertest.ListenHTTP(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "stolen") })))
	served := func() {
		t.Helper()
		if status, body, err := fetch(port, "/"); err != nil || status != http.StatusOK || body != "POST / x" {
			t.Errorf("got %d %q %v", status, body, err)
		}
	}
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK })
	client := c.elasti.ElastiV1alpha1().ElastiServices("shop")
	thief.Status.ProxyPorts[0].ProxyPort = port
	if _, err := client.UpdateStatus(t.Context(), thief, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return c.metric("elasti_resolver_proxy_port_conflicts") == 1 })
	served()
	if err := client.Delete(t.Context(), "thief", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return c.metric("elasti_resolver_proxy_port_conflicts") == 0 })
	served()
}
