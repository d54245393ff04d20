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
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// TestClientsThatAreNotAllowedAreReset connects from an address that the service
// does not allow, asleep and awake, and from one that it does.
func TestClientsThatAreNotAllowedAreReset(t *testing.T) {
	for _, protocol := range []string{"", "http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			port := freePort(t)
			es := elastiService("cart", port)
			es.Status.ProxyPorts[0].AppProtocol = protocol
			es.Spec.Proxy = &v1alpha1.ProxySpec{AllowedClients: []string{"192.0.2.0/24", "2001:db8::/32"}}
			es.Generation = 1
			c := newCluster(t, nil, es)
			resolvertest.DialReset(t, fmt.Sprintf("127.0.0.1:%d", port))
			c.apply(slice(es, true, pod(t)))
			if _, _, err := fetch(port, "/"); err == nil {
				t.Error("a client that is not allowed reaches the application")
			}
			if c.wakes.Load() != 0 {
				t.Error("it woke the target")
			}
			if got := c.counter("elasti_resolver_connections_rejected_total", "reason", "address_not_allowed"); got < 2 {
				t.Errorf("%v connections are counted", got)
			}
			es.Spec.Proxy.AllowedClients = []string{"127.0.0.0/8"}
			es.Generation++
			c.update(es)
			if protocol != "tcp" {
				c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == http.StatusOK })
			}
		})
	}
}

// update writes an ElastiService.
func (c *cluster) update(es *v1alpha1.ElastiService) {
	c.t.Helper()
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(es.Namespace).Update(c.t.Context(), es, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// queryHost sends a request for a host to the shared port, over HTTP/1.1 or HTTP/2.
func queryHost(t *testing.T, version string, port int32, host string) *http.Response {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	if version == "HTTP/2" {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response
}

// On the shared port the service is known only once the header fields are.
func TestClientsThatAreNotAllowedGetAResponseOnTheSharedPort(t *testing.T) {
	port := freePort(t)
	open, closed := elastiService("open", port), elastiService("closed", port)
	closed.Spec.Proxy = &v1alpha1.ProxySpec{AllowedClients: []string{"192.0.2.0/24"}}
	c := newCluster(t, func(o *Options) { o.SharedPort, o.ClusterDomain = port, "cluster.local" }, open, closed)
	address := resolvertest.ListenHTTP(t, func(http.ResponseWriter, *http.Request) {})
	c.apply(slice(open, true, address))
	c.apply(slice(closed, true, address))
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		c.eventually(func() bool { return queryHost(t, version, port, "open.shop.svc").StatusCode == http.StatusOK })
		if response := queryHost(t, version, port, "closed.shop.svc"); response.StatusCode != http.StatusForbidden || response.Header.Get("X-Elasti-Answer") != "AddressNotAllowed" {
			t.Errorf("%s: a client that is not allowed gets %d %v", version, response.StatusCode, response.Header)
		}
	}
}

// TestProxyPortServesNoNewClientWhileTheTargetIsAwake connects past the grace period,
// and has the target put to sleep while the connection waits.
func TestProxyPortServesNoNewClientWhileTheTargetIsAwake(t *testing.T) {
	port, shared := freePort(t), freePort(t)
	es, other := elastiService("cart", port), elastiService("other", shared)
	es.Status.Mode, other.Status.Mode = v1alpha1.ModeServe, v1alpha1.ModeServe
	c := newCluster(t, func(o *Options) {
		o.SharedPort, o.ClusterDomain = shared, "cluster.local"
		o.Drain.ServeGrace, o.Drain.PathTimeout = time.Nanosecond, 5*time.Second
	}, es, other)
	address := resolvertest.ListenHTTP(t, func(http.ResponseWriter, *http.Request) {})
	for _, s := range []*v1alpha1.ElastiService{es, other} {
		c.apply(slice(s, true, address))
	}
	rejected := func() float64 {
		return c.counter("elasti_resolver_connections_rejected_total", "reason", "serve_mode")
	}
	// Until the pods are observed, clients are served.
	c.eventually(func() bool { _, _, err := fetch(port, "/"); return err != nil })
	c.eventually(func() bool {
		return queryHost(t, "HTTP/1.1", shared, "other.shop.svc").Header.Get("X-Elasti-Answer") == "Serving"
	})
	if rejected() < 2 {
		t.Errorf("%v connections are counted", rejected())
	}
	before := rejected()
	responded := make(chan int, 1)
	go func() { status, _, _ := fetch(port, "/"); responded <- status }()
	c.eventually(func() bool { return c.metric("elasti_resolver_connections") == 1 })
	es.Status.SleepRequestedTime = &metav1.Time{Time: time.Now()}
	c.update(es)
	if status := <-responded; status != http.StatusOK {
		t.Errorf("a client that came before the resolver knew gets %d", status)
	}
	if rejected() != before {
		t.Errorf("%v connections were rejected meanwhile", rejected()-before)
	}
}

// awaitServing waits until the resolver knows that a target is awake: clients that
// connect wait until resolvers are in the path again, for longer than the test.
func (c *cluster) awaitServing(port int32, es *v1alpha1.ElastiService, address string) {
	c.t.Helper()
	c.apply(slice(es, true, address))
	c.eventually(func() bool {
		conn := resolvertest.Dial(c.t, fmt.Sprintf("127.0.0.1:%d", port))
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s.shop.svc\r\n\r\n", es.Name); err != nil {
			return false
		}
		// Until the pods are observed it is held.
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := conn.Read(make([]byte, 1))
		return errors.Is(err, os.ErrDeadlineExceeded) && c.gauge("elasti_resolver_queued_count", "source", es.Spec.Service) == 0
	})
}

// TestClientThatWaitsForThePathMayLeave checks that such a client takes no place of others
// afterwards, and keeps no resolver from ending.
func TestClientThatWaitsForThePathMayLeave(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Status.Mode = v1alpha1.ModeServe
	c := newCluster(t, func(o *Options) { o.Drain.ServeGrace, o.Drain.PathTimeout = time.Nanosecond, time.Hour }, es)
	open := func(n int) {
		t.Helper()
		c.eventually(func() bool { return c.metric("elasti_resolver_connections") == float64(n) })
	}
	c.awaitServing(port, es, pod(t))
	open(0)
	conn := resolvertest.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
	open(1)
	// The resolver ends before it has waited for as long as it may.
	c.stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the client gets a response")
	}
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	c.ended <- nil
}

// TestStreamForAnotherServiceStopsNoStream opens one for a service that resolvers are
// not in the path of, on a connection that carries a stream to another.
func TestStreamForAnotherServiceStopsNoStream(t *testing.T) {
	shared := freePort(t)
	cart, till := elastiService("cart", shared), elastiService("till", shared)
	till.Status.Mode = v1alpha1.ModeServe
	c := newCluster(t, func(o *Options) {
		o.SharedPort, o.ClusterDomain = shared, "cluster.local"
		o.Drain.ServeGrace, o.Drain.PathTimeout = time.Nanosecond, time.Hour
	}, cart, till)
	address := resolvertest.ListenHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	})
	c.awaitServing(shared, till, address)
	c.apply(slice(cart, true, address))
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	query := func(host string, body io.Reader) *http.Response {
		t.Helper()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/", shared), body)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatalf("%s: %v", host, err)
		}
		return response
	}
	upload, client := io.Pipe()
	defer client.Close()
	echoed := query("cart.shop.svc", upload)
	defer echoed.Body.Close()
	other := query("till.shop.svc", nil)
	other.Body.Close()
	if other.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("the other stream gets %d", other.StatusCode)
	}
	if _, err := io.WriteString(client, "ok"); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if got, err := io.ReadAll(echoed.Body); err != nil || string(got) != "ok" {
		t.Errorf("the first stream echoes %q, %v", got, err)
	}
}
