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

package http1

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestLocalRepliesAtZero(t *testing.T) {
	rules, err := proberesponse.Compile([]v1alpha1.ProbeResponseRule{{
		Path:     &v1alpha1.PathMatch{Type: v1alpha1.PathMatchExact, Value: "/healthz"},
		Headers:  []v1alpha1.ValueMatch{{Name: "x-probe", Value: "yes"}},
		Response: v1alpha1.ProbeResponse{Status: 200, Body: "alive"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(c *service.Config) {
		c.ProbeResponses = rules
		c.WaitingPage = true
	})
	conn := f.client()
	reader := bufio.NewReader(conn)
	query := func(request, method string, status int, reason localreply.Reason) string {
		t.Helper()
		send(t, conn, request)
		response, body := readResponse(t, reader, method)
		if response.StatusCode != status || response.Header.Get(localreply.HeaderReason) != string(reason) {
			t.Errorf("%q gets %d %v, want %d %s", request, response.StatusCode, response.Header, status, reason)
		}
		return body
	}
	if body := query(get("/healthz?x=1", "X-Probe: yes"), "GET", 200, localreply.ReasonProbeResponse); body != "alive" {
		t.Errorf("got %q", body)
	}
	query("HEAD /healthz HTTP/1.1\r\nHost: a\r\nX-Probe: yes\r\n\r\n", "HEAD", 200, localreply.ReasonProbeResponse)
	query(get("/", "User-Agent: kube-probe/1.37"), "GET", 503, localreply.ReasonAsleep)
	if waking := f.service.Queue().NeedsPod(); waking {
		t.Error("a health check wakes the target")
	}
	page := query(get("/", "Accept: text/html,*/*;q=0.8", "Sec-Fetch-Mode: navigate"), "GET", 503, localreply.ReasonWaitingPage)
	if !strings.Contains(page, "<title>") {
		t.Errorf("the page is %q", page)
	}
	if !f.service.Queue().NeedsPod() {
		t.Error("the page does not wake the target")
	}
	query("HEAD / HTTP/1.1\r\nHost: a\r\nX-Elasti-Waiting: 1\r\n\r\n", "HEAD", 503, localreply.ReasonWaitingPage)

	// Other clients are held, and all of them get the application once it is awake.
	send(t, conn, get("/", "Accept: application/json"))
	f.held(1)
	f.pods(httpPod(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the application") }))
	if _, body := readResponse(t, reader, "GET"); body != "the application" {
		t.Errorf("got %q", body)
	}
	for _, request := range []string{get("/healthz", "X-Probe: yes"), get("/", "User-Agent: kube-probe/1.37"), get("/", "Accept: text/html")} {
		if body := query(request, "GET", 200, ""); body != "the application" {
			t.Errorf("%q gets %q", request, body)
		}
	}
}

// TestClientOfHTTP10IsNotifiedThatItsConnectionStaysOpen checks the field that says so:
// without it a client that requested a kept connection waits for its end as that of the
// response.
func TestClientOfHTTP10IsNotifiedThatItsConnectionStaysOpen(t *testing.T) {
	f := newFixture(t, nil)
	conn := f.client()
	reader := bufio.NewReader(conn)
	for range 2 {
		send(t, conn, "GET / HTTP/1.0\r\nConnection: keep-alive\r\nUser-Agent: kube-probe/1.37\r\n\r\n")
		response, _ := readResponse(t, reader, http.MethodGet)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Connection") != "keep-alive" {
			t.Errorf("the response is %d %v", response.StatusCode, response.Header)
		}
	}
	send(t, conn, "GET / HTTP/1.0\r\nUser-Agent: kube-probe/1.37\r\n\r\n")
	if response, _ := readResponse(t, reader, http.MethodGet); !response.Close {
		t.Errorf("the response is %d %v", response.StatusCode, response.Header)
	}
}

// TestPassiveRequestThatThePodRejectsWakesNothing scrapes a pod that has just ended.
func TestPassiveRequestThatThePodRejectsWakesNothing(t *testing.T) {
	f := newFixture(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	f.pods(listener.Addr().String())
	conn := f.client()
	send(t, conn, get("/", "User-Agent: kube-probe/1.37"))
	response, _ := readResponse(t, bufio.NewReader(conn), "GET")
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonAsleep) {
		t.Errorf("it gets %d %v", response.StatusCode, response.Header)
	}
	if f.record(1).Held || f.service.Queue().NeedsPod() {
		t.Error("it wakes the target")
	}
}

// TestPassiveRequestThatWaitsForABusyPodWakesNothing scrapes a pod that serves another
// scrape and is removed meanwhile.
func TestPassiveRequestThatWaitsForABusyPodWakesNothing(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 })
	finish := make(chan struct{})
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) { <-finish }))
	scrape := func() *bufio.Reader {
		conn := f.client()
		send(t, conn, get("/", "User-Agent: kube-probe/1.37"))
		return bufio.NewReader(conn)
	}
	served := scrape()
	f.inFlight(1)
	waits := scrape()
	f.held(1)
	f.pods()
	response, _ := readResponse(t, waits, http.MethodGet)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get(localreply.HeaderReason) != string(localreply.ReasonAsleep) {
		t.Errorf("it gets %d %v", response.StatusCode, response.Header)
	}
	if f.service.Queue().NeedsPod() {
		t.Error("it wakes the target")
	}
	close(finish)
	if response, _ := readResponse(t, served, http.MethodGet); response.StatusCode != http.StatusOK {
		t.Errorf("the other one gets %d", response.StatusCode)
	}
}

// TestPassiveRequestsReachAPodThatDidNotAcceptOnce scrapes a ready pod that did not
// accept a connection, while nothing else requests anything of it.
func TestPassiveRequestsReachAPodThatDidNotAcceptOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.pods(httpPod(t, func(http.ResponseWriter, *http.Request) {}))
	lease, ok := f.service.Queue().TryTake("")
	if !ok {
		t.Fatal("there is no pod")
	}
	lease.ConnectionRefused()
	conn := f.client()
	reader := bufio.NewReader(conn)
	eventually(t, func() bool {
		send(t, conn, get("/", "User-Agent: kube-probe/1.37"))
		response, _ := readResponse(t, reader, http.MethodGet)
		return response.StatusCode == http.StatusOK
	})
	if f.record(1).Held || f.service.Queue().NeedsPod() {
		t.Error("a scrape wakes the target")
	}
}
