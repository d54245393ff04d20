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
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestHealthChecksGetLocalRepliesAtZeroAndReachTheApplicationAwake(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		// Resolvers stay in the path, and must not send local replies any more.
		spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
		spec.ProbeResponse = []v1alpha1.ProbeResponseRule{{
			Method:   http.MethodGet,
			Path:     &v1alpha1.PathMatch{Type: v1alpha1.PathMatchExact, Value: "/alive"},
			Response: v1alpha1.ProbeResponse{Status: http.StatusOK, Body: `{"asleep":true}`},
		}}
	}})
	for range 10 {
		response := s.request(app, http.MethodGet, "/alive", nil)
		if response.Status != http.StatusOK || response.Body != `{"asleep":true}` || response.Header.Get(cluster.ResponseHeader) != "ProbeResponse" {
			t.Fatalf("the rule gets %d %q %v", response.Status, response.Body, response.Header)
		}
		for _, agent := range []string{"kube-probe/1.37", "ELB-HealthChecker/2.0"} {
			for _, transport := range []*http.Transport{{DisableKeepAlives: true}, priorKnowledge()} {
				response := s.requestOver(transport, app, http.MethodGet, "/", http.Header{"User-Agent": {agent}})
				if response.Status != http.StatusServiceUnavailable || response.Header.Get(cluster.ResponseHeader) != "Asleep" {
					t.Fatalf("%s gets %d %q %v", agent, response.Status, response.Body, response.Header)
				}
			}
		}
	}
	s.checkReplicas(app, 0)

	s.get(app, "/")
	// Each resolver observes the pod at a time of its own.
	row := 0
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(context.Context) (bool, error) {
		response := s.request(app, http.MethodGet, "/alive", http.Header{"User-Agent": {"kube-probe/1.37"}})
		if row++; response.FromApplication(app.Name) != nil {
			row = 0
		}
		return row == 20, nil
	})
	if err != nil {
		t.Fatalf("resolvers go on responding for an application that is awake: %v", err)
	}
}

func TestBrowserSeesTheWakeAndThenTheApplication(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-start-delay=3s"},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{WaitingPage: true}
		},
	})
	navigation := http.Header{"Accept": {"text/html,application/xhtml+xml,*/*;q=0.8"}, "Sec-Fetch-Mode": {"navigate"}}
	page := s.request(app, http.MethodGet, "/shop", navigation)
	if page.Status != http.StatusServiceUnavailable || page.Header.Get(cluster.ResponseHeader) != "WaitingPage" ||
		!strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") || !strings.Contains(page.Body, "<title>") {
		t.Fatalf("a browser gets %d %v %.100q", page.Status, page.Header, page.Body)
	}
	// The page wakes the target without a held request, and polls until a response
	// comes from the application.
	steps := map[string]bool{}
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, testTimeout, true, func(context.Context) (bool, error) {
		response := s.request(app, http.MethodHead, "/shop", http.Header{"X-Elasti-Waiting": {"1"}})
		steps[response.Header.Get("X-Elasti-Progress")] = true
		return response.FromApplication(app.Name) == nil, nil
	})
	if err != nil {
		t.Fatalf("the page waits for ever; it saw the steps %v", steps)
	}
	if len(steps) < 2 {
		t.Errorf("the page saw no progress: %v", steps)
	}
	response := s.request(app, http.MethodGet, "/shop", navigation)
	s.checkResponse(app, response, "/shop")
}

// request sends one request with these headers on a new connection.
func (s *scene) request(app *cluster.Application, method, path string, fields http.Header) *cluster.Response {
	s.Helper()
	return s.requestOver(&http.Transport{DisableKeepAlives: true}, app, method, path, fields)
}

// requestOver sends one request with these headers over a transport, whose idle
// connections it closes.
func (s *scene) requestOver(transport *http.Transport, app *cluster.Application, method, path string, fields http.Header) *cluster.Response {
	s.Helper()
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(s.ctx, method, app.URL(path), nil)
	s.check(err)
	for name, values := range fields {
		request.Header[name] = values
	}
	response, err := cluster.Do(&http.Client{Transport: transport}, request)
	s.check(err)
	return response
}
