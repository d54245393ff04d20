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

package passive

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// The values are those of the real products.
func TestWellKnownUserAgents(t *testing.T) {
	for _, agent := range []string{
		"Prometheus/3.5.0",
		"GrafanaAgent/v0.40.0 (flow; linux; docker)",
		"Alloy/v1.8.0 (linux; docker)",
		"otelcol-contrib/0.130.0",
		"vm_promscrape",
		"Datadog Agent/7.68.0",
		"kube-probe/1.37",
		"ELB-HealthChecker/2.0",
		"GoogleHC/1.0",
		"GoogleStackdriverMonitoring-UptimeChecks(https://cloud.google.com/monitoring)",
		"Amazon-Route53-Health-Check-Service (ref 0a1b2c; report http://amzn.to/1vsZADi)",
		"Edge Health Probe",
		"Load Balancer Agent",
		"Azure Traffic Manager Endpoint Monitor",
		"Mozilla/5.0 (compatible;Cloudflare-Healthchecks/1.0;+https://www.cloudflare.com/; healthcheck-id: 08c774cde2f3c385)",
		"Mozilla/5.0+(compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
		"Pingdom.com_bot_version_1.4_(http://www.pingdom.com/)",
		"Better Stack Better Uptime Bot Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)",
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/103.0.0.0 Safari/537.36 StatusCake",
		"Mozilla/5.0 (compatible; Site24x7; https://www.site24x7.com/)",
		"Blackbox Exporter/0.27.0",
		"Uptime-Kuma/1.23.16",
	} {
		if !(*Rules)(nil).Match(Request{Method: "GET", Path: "/", UserAgents: []string{agent}}, WellKnownUserAgents()) {
			t.Errorf("%s is not passive", agent)
		}
	}
	for _, agent := range []string{
		"", "curl/8.14.1", "Go-http-client/1.1", "python-requests/2.32.3", "okhttp/4.12.0",
		"Mozilla/5.0 (X11; Linux x86_64; rv:141.0) Gecko/20100101 Firefox/141.0",
		"OpenTelemetry Collector Contrib/0.130.0 (linux/amd64)",
		"grpc-go/1.75.0",
		"not Prometheus/3.5.0",
		strings.Repeat("a", 2*maxAgentBytes) + "StatusCake",
	} {
		if (*Rules)(nil).Match(Request{Method: "GET", Path: "/", UserAgents: []string{agent}}, WellKnownUserAgents()) {
			t.Errorf("%.80s is passive", agent)
		}
	}
}

func TestMatch(t *testing.T) {
	spec := &v1alpha1.PassiveSpec{UserAgents: []string{"Monitor/", "*"}, Paths: []string{"/metrics"}, Ports: []int32{9090}}
	without := spec.DeepCopy()
	without.WellKnown = ptr.To(false)
	for name, test := range map[string]struct {
		spec    *v1alpha1.PassiveSpec
		request Request
		want    bool
	}{
		"by default":               {nil, Request{Method: "GET", Path: "/metrics", Port: 9090, UserAgents: []string{"Monitor/1"}}, false},
		"well known":               {spec, Request{Method: "HEAD", UserAgents: []string{"prometheus/3.5.0"}}, true},
		"well known, switched off": {without, Request{Method: "GET", UserAgents: []string{"Prometheus/3.5.0"}}, false},
		"well known, sends data":   {nil, Request{Method: "POST", Path: "/api/v1/write", UserAgents: []string{"Prometheus/3.5.0"}}, false},
		"well known, gRPC check":   {nil, Request{Method: "POST", Path: "/grpc.health.v1.Health/Check", UserAgents: []string{"kube-probe/1.37 grpc-go/1.75.0"}}, true},
		"the second of two":        {nil, Request{Method: "GET", UserAgents: []string{"curl/8", "kube-probe/1.37"}}, true},
		"one of many":              {nil, Request{Method: "GET", UserAgents: append(make([]string, maxAgents), "kube-probe/1.37")}, false},
		"user agent":               {spec, Request{Method: "POST", UserAgents: []string{"MONITOR/1"}}, true},
		"marks nothing in a spec":  {spec, Request{Method: "GET", UserAgents: []string{"a * b"}}, false},
		"begins otherwise":         {spec, Request{Method: "GET", UserAgents: []string{"a Monitor/1"}}, false},
		"path":                     {spec, Request{Method: "GET", Path: "/metrics"}, true},
		"path below":               {spec, Request{Method: "GET", Path: "/metrics/a"}, false},
		"port":                     {without, Request{Method: "GET", Path: "/", Port: 9090}, true},
		"another port":             {spec, Request{Method: "GET", Path: "/", Port: 80}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Compile(test.spec).Match(test.request, WellKnownUserAgents()); got != test.want {
				t.Errorf("passive is %t, want %t", got, test.want)
			}
		})
	}
}
