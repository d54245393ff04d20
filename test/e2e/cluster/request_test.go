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

package cluster

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOnlyResponsesOfTheApplicationAreItsOwn(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		header map[string]string
		want   string
	}{
		{"ItsPod", http.StatusOK, map[string]string{podHeader: "web-abc"}, ""},
		{"ItsPodWithAnError", http.StatusNotFound, map[string]string{podHeader: "web-abc"}, "pod web-abc responded with status 404"},
		{"AnotherServer", http.StatusOK, nil, "something other than application web responded, status 200"},
		{"AnotherServerWithAnError", http.StatusNotFound, nil, "something other than application web responded, status 404"},
		{"AnotherApplication", http.StatusOK, map[string]string{podHeader: "webshop-abc"}, "which is not of application web"},
		{"Resolver", http.StatusServiceUnavailable, map[string]string{ResponseHeader: "HoldTimeout"}, "a resolver responded itself (HoldTimeout)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := &Response{Status: test.status, Header: http.Header{}}
			for name, value := range test.header {
				got.Header.Set(name, value)
			}
			err := got.FromApplication("web")
			if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("the error is %v, want %q", err, test.want)
			}
		})
	}
}

func TestReachableIsWhatAResolverOrTheApplicationRespondsTo(t *testing.T) {
	for _, test := range []struct {
		name      string
		header    map[string]string
		status    int
		reachable bool
	}{
		{"AnotherServer", nil, http.StatusNotFound, false},
		{"AnotherServerThatSaysOK", nil, http.StatusOK, false},
		{"ResolverOfAnotherService", map[string]string{ResponseHeader: "UnknownHost"}, http.StatusNotFound, false},
		{"Resolver", map[string]string{ResponseHeader: "Asleep"}, http.StatusServiceUnavailable, true},
		{"Pod", map[string]string{podHeader: "web-abc"}, http.StatusOK, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
				if agent := request.UserAgent(); !strings.HasPrefix(agent, "kube-probe/") {
					t.Errorf("the user agent %q would wake the target", agent)
				}
				for name, value := range test.header {
					response.Header().Set(name, value)
				}
				response.WriteHeader(test.status)
			}))
			defer server.Close()
			host, port, err := net.SplitHostPort(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			number, err := strconv.ParseInt(port, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			app := &Application{Name: "web", Address: host, options: ApplicationOptions{ServicePorts: []corev1.ServicePort{{Port: int32(number)}}}}
			if err := app.checkReachable(t.Context()); (err == nil) != test.reachable {
				t.Errorf("the error is %v, want reachable to be %t", err, test.reachable)
			}
		})
	}
}
