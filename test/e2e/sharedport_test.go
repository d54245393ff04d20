//go:build more

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

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// sharedPort is the --shared-http-port of the resolvers as deployed.
	sharedPort = 9080
	// sharedHostHeader is their --shared-http-host-header on the test cluster.
	sharedHostHeader = "X-Elasti-Host"
)

// TestServicesWithoutAProxyPortAreRoutedByHostName leaves one proxy port for two
// services.
func TestServicesWithoutAProxyPortAreRoutedByHostName(t *testing.T) {
	s := newScene(t)
	s.withArgument(apiserverDeployment, "--proxy-port-range=29999-29999")
	first := s.asleep(cluster.ApplicationOptions{Name: "first"})
	// An object of an earlier test may hold the port until it is deleted.
	s.awaitProxyPort(first, 29999)
	// Resolvers stay in the path, so that each request is routed by its host name.
	always := func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
	}
	second := s.asleep(cluster.ApplicationOptions{Name: "second", Spec: always})
	third := s.asleep(cluster.ApplicationOptions{Name: "third", Spec: always})
	s.awaitProxyPort(second, sharedPort)
	s.awaitProxyPort(third, sharedPort)

	// Only services on the shared port are reachable by host name.
	for _, host := range []string{second.Address, "www.example.com", "first." + s.namespace, "second.kube-system", "second." + s.namespace + ".svc.example.com", "second." + s.namespace + ":81"} {
		response := s.sendTo(second, host, "")
		if response.Status != http.StatusMisdirectedRequest || response.Header.Get("X-Elasti-Answer") != "UnknownHost" {
			t.Errorf("a request for %s gets %d %s", host, response.Status, response.Body)
		}
	}
	s.checkReplicas(first, 0)
	s.checkReplicas(second, 0)

	for _, form := range []string{"", ":80", ".svc", ".svc.cluster.local", ".svc.cluster.local.:80"} {
		s.awaitResponse(second, "second."+s.namespace+form, "")
	}
	s.awaitResponse(third, "www.example.com", "third."+s.namespace)
	// The application with a port of its own needs no host name.
	s.get(first, "/")
}

// awaitProxyPort waits until the only proxy port of an application is the one
// that is wanted.
func (s *scene) awaitProxyPort(app *cluster.Application, want int32) {
	s.Helper()
	_, err := s.AwaitElastiService(s.ctx, app.Namespace, app.Name, fmt.Sprintf("its proxy port is %d", want), func(elastiService *v1alpha1.ElastiService) bool {
		ports := elastiService.Status.ProxyPorts
		return len(ports) == 1 && ports[0].ProxyPort == want
	})
	s.check(err)
}

// sendTo sends a request with a Host header, and with the header that takes precedence
// over it, to the Service of an application.
func (s *scene) sendTo(app *cluster.Application, host, field string) *cluster.Response {
	s.Helper()
	client := &http.Client{Transport: withHost{host, field}}
	response, err := cluster.GetWith(s.ctx, client, app.URL("/"))
	s.check(err)
	return response
}

// withHost sends requests with these values, each over a connection of its own.
type withHost struct{ host, field string }

// RoundTrip implements http.RoundTripper.
func (w withHost) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Host = w.host
	if w.field != "" {
		request.Header.Set(sharedHostHeader, w.field)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	return transport.RoundTrip(request)
}

// awaitResponse sends requests until the response comes from the application. Each
// resolver observes a new service at a time of its own.
func (s *scene) awaitResponse(app *cluster.Application, host, field string) {
	s.Helper()
	var last *cluster.Response
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(context.Context) (bool, error) {
		last = s.sendTo(app, host, field)
		return last.FromApplication(app.Name) == nil, nil
	})
	if err != nil {
		s.Fatalf("a request for %s (%s) gets %d %s", host, field, last.Status, last.Body)
	}
	s.checkResponse(app, last, "/")
	s.checkPeer(last, true)
}
