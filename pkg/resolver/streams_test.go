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
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// What is not HTTP is carried as it is, also when the server speaks first.
func TestStreamAtZero(t *testing.T) {
	port := freePort(t)
	es := elastiService("db", port)
	c := newCluster(t, nil, es)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// Probes connect too.
			running.Go(func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "220 ready\r\n")
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	defer running.Wait()
	defer listener.Close()
	// Not ready, and without a readiness probe: it is when it accepts.
	es.Status.ReadinessProbes = &v1alpha1.ReadinessProbes{}
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices("shop").UpdateStatus(t.Context(), es, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wake := func(*v1alpha1.WakeRequest) error {
		go c.apply(slice(es, false, listener.Addr().String()))
		return nil
	}
	c.wake.Store(&wake)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	want := "220 ready\r\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v", got, err)
	}
}

// countingPod is a pod that counts the connections that it accepted.
func countingPod(t *testing.T) (address string, accepted *atomic.Int32) {
	t.Helper()
	accepted = &atomic.Int32{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				accepted.Add(1)
			}
		},
	}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String(), accepted
}

// A client that connects long before it sends a request, as browsers do, is served as any
// other once it sends one.
func TestEarlyConnectionIsStillHTTP(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Status.Mode = v1alpha1.ModeServe
	c := newCluster(t, func(o *Options) { o.Timeouts.Sniff = time.Millisecond }, es)
	address, accepted := countingPod(t)
	c.apply(slice(es, true, address))
	c.eventually(func() bool { status, _, _ := fetch(port, "/"); return status == 200 })
	before := accepted.Load()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// It counts as one that lets the server speak first, and has a pod by now.
	c.eventually(func() bool { return accepted.Load() > before })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK || !response.Close {
		t.Errorf("got %d, close %t", response.StatusCode, response.Close)
	}
}

// TestLateWordsOfABrowserGetTheWaitingPage connects ahead of the request, as
// browsers do, and is held as a client that lets the server speak first.
func TestLateWordsOfABrowserGetTheWaitingPage(t *testing.T) {
	port := freePort(t)
	es := elastiService("cart", port)
	es.Spec.Proxy = &v1alpha1.ProxySpec{WaitingPage: true}
	c := newCluster(t, func(o *Options) { o.Timeouts.Sniff = time.Millisecond }, es)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c.eventually(func() bool { return c.metric("elasti_resolver_queued_count") == 1 })
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("X-Elasti-Answer") != "WaitingPage" {
		t.Errorf("got %d %v", response.StatusCode, response.Header)
	}
}

// TestHealthCheckThatOnlyConnectsWakesNothing connects to a sleeping target as
// load balancers do, and then as a client of a server that greets.
func TestHealthCheckThatOnlyConnectsWakesNothing(t *testing.T) {
	for _, protocol := range []string{"", "tcp", "redis"} {
		t.Run(protocol, func(t *testing.T) {
			port := freePort(t)
			es := elastiService("db", port)
			es.Status.ProxyPorts[0].AppProtocol = protocol
			c := newCluster(t, func(o *Options) { o.Timeouts.Sniff, o.Timeouts.Greeting = time.Millisecond, time.Hour }, es)
			for range 3 {
				conn := resolvertest.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
				c.eventually(func() bool { return c.metric("elasti_resolver_connections") == 1 })
				conn.Close()
				c.eventually(func() bool { return c.metric("elasti_resolver_connections") == 0 })
			}
			// Whether it is a stream is not known of one that ends sooner.
			if got := c.counter("elasti_resolver_requests_total", "outcome", "silent"); got != 3 && protocol != "" {
				t.Errorf("%v silent connections are counted", got)
			}
			if c.wakes.Load() != 0 {
				t.Error("a health check woke the target")
			}
		})
	}
}

func TestClientThatWaitsForTheServerWakesTheTarget(t *testing.T) {
	for protocol, greeting := range map[string]time.Duration{"": time.Millisecond, "mysql": time.Millisecond, "elasti.truefoundry.com/server-first": time.Hour} {
		t.Run(protocol, func(t *testing.T) {
			port := freePort(t)
			es := elastiService("db", port)
			es.Status.ProxyPorts[0].AppProtocol = protocol
			c := newCluster(t, func(o *Options) { o.Timeouts.Sniff, o.Timeouts.Greeting = time.Millisecond, greeting }, es)
			address := resolvertest.Listen(t, func(conn *net.TCPConn) { _, _ = io.WriteString(conn, "5.7.1-greeting") })
			wake := func(*v1alpha1.WakeRequest) error {
				go c.apply(slice(es, true, address))
				return nil
			}
			c.wake.Store(&wake)
			conn := resolvertest.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
			if got, err := io.ReadAll(conn); err != nil || string(got) != "5.7.1-greeting" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// TestFinishedClientsGetResponses sends all that there is to say and finishes, as nc
// -N does, before it is known what is spoken.
func TestFinishedClientsGetResponses(t *testing.T) {
	for _, protocol := range []string{"", "tcp"} {
		for _, word := range []string{"", "HELO"} {
			t.Run(protocol+" "+word, func(t *testing.T) {
				port := freePort(t)
				es := elastiService("db", port)
				es.Status.ProxyPorts[0].AppProtocol = protocol
				c := newCluster(t, func(o *Options) { o.Timeouts.Sniff = time.Hour }, es)
				c.apply(slice(es, true, resolvertest.Listen(t, func(conn *net.TCPConn) {
					got, _ := io.ReadAll(conn)
					_, _ = io.WriteString(conn, "you said "+string(got))
				})))
				conn := resolvertest.Dial(t, fmt.Sprintf("127.0.0.1:%d", port))
				if _, err := io.WriteString(conn, word); err != nil {
					t.Fatal(err)
				}
				if err := conn.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(conn); err != nil || string(got) != "you said "+word {
					t.Errorf("got %q, %v", got, err)
				}
			})
		}
	}
}
