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
	"testing"
	"time"

	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// scraped is an ElastiService that sleeps by traffic, with a second port that is
// passive.
func scraped(port, metrics int32) *v1alpha1.ElastiService {
	es := elastiService("cart", port, metrics)
	es.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: triggers.TypeTraffic}}
	es.Spec.Proxy = &v1alpha1.ProxySpec{Passive: &v1alpha1.PassiveSpec{UserAgents: []string{"Shop-Monitor/"}, Paths: []string{"/metrics"}, Ports: []int32{81}}}
	es.Status.ProxyPorts[1].AppProtocol = "tcp"
	return es
}

// requestAs sends a GET request over HTTP/1.1 or HTTP/2.
func requestAs(t *testing.T, version string, port int32, path, agent string) *http.Response {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	if version == "HTTP/2" {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("User-Agent", agent)
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	return response
}

// TestPassiveRequestsNeitherWakeNorCount scrapes a target that sleeps, and then one
// that is awake.
func TestPassiveRequestsNeitherWakeNorCount(t *testing.T) {
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(version, func(t *testing.T) {
			port := freePort(t)
			es := scraped(port, freePort(t))
			control := newControl(t)
			c := newCluster(t, func(o *Options) { o.PassiveUserAgents = passive.WellKnownUserAgents() }, es, control)
			requests := map[string]string{"Prometheus/3.5.0": "/", "Shop-Monitor/1": "/", "curl/8": "/metrics?all=1"}
			for agent, path := range requests {
				if response := requestAs(t, version, port, path, agent); response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("X-Elasti-Answer") != "Asleep" {
					t.Errorf("%s gets %d %v", agent, response.StatusCode, response.Header)
				}
			}
			if c.wakes.Load() != 0 {
				t.Error("a scrape woke the target")
			}
			c.apply(slice(es, true, resolvertest.ListenHTTP(t, func(http.ResponseWriter, *http.Request) {})))
			for agent, path := range requests {
				c.eventually(func() bool { return requestAs(t, version, port, path, agent).StatusCode == http.StatusOK })
			}
			c.awaitReports(control)
			if c.reported(es) {
				t.Error("a scrape is reported as use")
			}
			if response := requestAs(t, version, port, "/", "curl/8"); response.StatusCode != http.StatusOK {
				t.Errorf("a client gets %d", response.StatusCode)
			}
			c.eventually(func() bool { return c.reported(es) })
		})
	}
}

// newControl returns another ElastiService that sleeps by traffic, for awaitReports.
func newControl(t *testing.T) *v1alpha1.ElastiService {
	t.Helper()
	control := scraped(freePort(t), freePort(t))
	control.Name, control.Spec.Service, control.Status.PrivateService = "till", "till", "elasti-till-pvt-0"
	return control
}

// awaitReports returns once all requests of before have been reported: a later one, to
// another ElastiService, has been.
func (c *cluster) awaitReports(control *v1alpha1.ElastiService) {
	c.t.Helper()
	c.apply(slice(control, true, resolvertest.ListenHTTP(c.t, func(http.ResponseWriter, *http.Request) {})))
	if response := requestAs(c.t, "HTTP/1.1", control.Status.ProxyPorts[0].ProxyPort, "/", "curl/8"); response.StatusCode != http.StatusOK {
		c.t.Fatalf("a client gets %d", response.StatusCode)
	}
	c.eventually(func() bool { return c.reported(control) })
}

// reported reports whether the resolver has reported a request to an ElastiService.
func (c *cluster) reported(es *v1alpha1.ElastiService) bool {
	for _, action := range c.elasti.Actions() {
		create, ok := action.(clienttesting.CreateActionImpl)
		if ok && create.Subresource == "activity" && create.Name == es.Name {
			return true
		}
	}
	return false
}

// TestPassivePortOfBytes connects to a passive port of a target that sleeps, and
// then of one that is awake.
func TestPassivePortOfBytes(t *testing.T) {
	metrics := freePort(t)
	es := scraped(freePort(t), metrics)
	control := newControl(t)
	c := newCluster(t, nil, es, control)
	address := fmt.Sprintf("127.0.0.1:%d", metrics)
	asleep := resolvertest.Dial(t, address)
	if _, err := io.WriteString(asleep, "stats\n"); err != nil {
		t.Fatal(err)
	}
	resolvertest.AwaitReset(t, asleep)
	if c.wakes.Load() != 0 {
		t.Error("a passive port woke the target")
	}
	pods := slice(es, true, resolvertest.Listen(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }))
	*pods.Ports[0].Name = "p1"
	c.apply(pods)
	c.eventually(func() bool {
		awake := resolvertest.Dial(t, address)
		defer awake.Close()
		_, _ = io.WriteString(awake, "stats\n")
		line, err := bufio.NewReader(awake).ReadString('\n')
		return err == nil && line == "stats\n"
	})
	c.awaitReports(control)
	if c.reported(es) {
		t.Error("a connection to a passive port is reported as use")
	}
}
