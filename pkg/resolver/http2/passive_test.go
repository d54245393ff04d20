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

package http2

import (
	"net"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// TestPassiveStreamThatThePodRejectsWakesNothing scrapes a pod that has just ended,
// in HTTP and in gRPC.
func TestPassiveStreamThatThePodRejectsWakesNothing(t *testing.T) {
	f := newFixture(t, func(c *service.Config) {
		c.Passive = passive.Compile(&v1alpha1.PassiveSpec{Paths: []string{"/shop.Metrics/Read"}})
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	f.pods(listener.Addr().String())
	w := dialWire(t, f.address)
	w.headers(1, true, get("user-agent", "kube-probe/1.37")...)
	if got := w.decode(await[*http2.HeadersFrame](w)); got[":status"] != "503" || got["x-elasti-answer"] != string(localreply.ReasonAsleep) {
		t.Errorf("a scrape gets %v", got)
	}
	w = dialWire(t, f.address)
	w.headers(1, true, ":method", "POST", ":scheme", "http", ":path", "/shop.Metrics/Read", ":authority", "cart", "content-type", "application/grpc")
	if got := w.decode(await[*http2.HeadersFrame](w)); got["grpc-status"] != "14" {
		t.Errorf("a call gets %v", got)
	}
	if f.service.Queue().NeedsPod() {
		t.Error("one of them wakes the target")
	}
}

// TestPassiveStreamThatWaitsForABusyPodWakesNothing scrapes a pod that serves another
// scrape and is removed meanwhile.
func TestPassiveStreamThatWaitsForABusyPodWakesNothing(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 })
	finish := make(chan struct{})
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) { <-finish }))
	scrape := func() *wire {
		w := dialWire(t, f.address)
		w.headers(1, true, get("user-agent", "kube-probe/1.37")...)
		return w
	}
	served := scrape()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	waits := scrape()
	f.held(1)
	f.pods()
	if got := waits.decode(await[*http2.HeadersFrame](waits)); got[":status"] != "503" || got["x-elasti-answer"] != string(localreply.ReasonAsleep) {
		t.Errorf("it gets %v", got)
	}
	if f.service.Queue().NeedsPod() {
		t.Error("it wakes the target")
	}
	close(finish)
	if got := served.decode(await[*http2.HeadersFrame](served)); got[":status"] != "200" {
		t.Errorf("the other one gets %v", got)
	}
}

// TestPassiveStreamsReachAPodThatDidNotAcceptOnce scrapes a ready pod that did not accept a
// connection, while nothing else requests anything of it.
func TestPassiveStreamsReachAPodThatDidNotAcceptOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
	lease, ok := f.service.Queue().TryTake("")
	if !ok {
		t.Fatal("there is no pod")
	}
	lease.ConnectionRefused()
	w, id := dialWire(t, f.address), uint32(1)
	f.eventually(func() bool {
		w.headers(id, true, get("user-agent", "kube-probe/1.37")...)
		id += 2
		return w.decode(await[*http2.HeadersFrame](w))[":status"] == "200"
	})
	if f.service.Queue().NeedsPod() {
		t.Error("a scrape wakes the target")
	}
}
