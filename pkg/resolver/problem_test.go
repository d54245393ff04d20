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
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// hostile is a problem as a tenant may word it: it ends a header, a JSON string
// and an HTML element.
const hostile = "container \"app\": ErrImagePull: </p><script>alert(1)</script>\r\nX-Injected: 50% é"

// withProblem returns an ElastiService whose target does not start. Its clients
// wait for a second.
func withProblem(name string, port int32, problem string) *v1alpha1.ElastiService {
	es := elastiService(name, port)
	es.Spec.Proxy = &v1alpha1.ProxySpec{HoldTimeoutSeconds: ptr.To[int32](1), WaitingPage: true}
	es.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionTargetAvailable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonStarting, Message: "no pod is ready yet"}}
	if problem != "" {
		es.Status.Conditions[0].Reason, es.Status.Conditions[0].Message = v1alpha1.ReasonImageNotPulled, problem
	}
	return es
}

// fetched is a response whose body was read.
type fetched struct {
	*http.Response
	body string
}

func do(t *testing.T, transport *http.Transport, method string, port int32, headers ...string) fetched {
	t.Helper()
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fetched{response, string(body)}
}

func TestResponsesRepeatWhatKeepsTheTargetFromStarting(t *testing.T) {
	cart, till := freePort(t), freePort(t)
	newCluster(t, nil, withProblem("cart", cart, hostile), withProblem("till", till, ""))
	const want = v1alpha1.ReasonImageNotPulled + ": " + hostile
	for name, test := range map[string]struct {
		port int32
		want bool
	}{"its own": {cart, true}, "of another service": {till, false}} {
		t.Run("HTTP/1.1, "+name, func(t *testing.T) {
			t.Parallel()
			got := do(t, &http.Transport{}, http.MethodPost, test.port)
			var status metav1.Status
			if err := json.Unmarshal([]byte(got.body), &status); err != nil {
				t.Fatalf("%v in %q", err, got.body)
			}
			if got.StatusCode != http.StatusGatewayTimeout || got.Header.Get("X-Injected") != "" || strings.Contains(status.Message, want) != test.want {
				t.Errorf("got %d %v %q", got.StatusCode, got.Header, status.Message)
			}
		})
		t.Run("gRPC, "+name, func(t *testing.T) {
			t.Parallel()
			transport := &http.Transport{Protocols: &http.Protocols{}}
			transport.Protocols.SetUnencryptedHTTP2(true)
			got := do(t, transport, http.MethodPost, test.port, "Content-Type", "application/grpc")
			message, err := url.PathUnescape(got.Header.Get("Grpc-Message"))
			if err != nil || got.Header.Get("Grpc-Status") != "14" || strings.Contains(message, want) != test.want {
				t.Errorf("got %v %q (error: %v)", got.Header, message, err)
			}
		})
		t.Run("waiting page, "+name, func(t *testing.T) {
			t.Parallel()
			got := do(t, &http.Transport{}, http.MethodGet, test.port, "Accept", "text/html")
			if strings.Contains(got.body, html.EscapeString(want)) != test.want || strings.Contains(got.body, "alert(1)</script>") || strings.Contains(got.body, "{{") {
				t.Errorf("the page is %q", got.body)
			}
			requested := do(t, &http.Transport{}, http.MethodHead, test.port, "X-Elasti-Waiting", "1")
			problem, err := url.PathUnescape(requested.Header.Get("X-Elasti-Problem"))
			if err != nil || (problem == want) != test.want || requested.Header.Get("X-Injected") != "" {
				t.Errorf("got %v (error: %v)", requested.Header, err)
			}
		})
	}
}

func TestResponsesForgetAProblemThatIsOver(t *testing.T) {
	port := freePort(t)
	es := withProblem("cart", port, "no such image")
	c := newCluster(t, nil, es)
	problem := func() bool {
		return do(t, &http.Transport{}, http.MethodHead, port, "X-Elasti-Waiting", "1").Header.Get("X-Elasti-Problem") != ""
	}
	if !problem() {
		t.Error("the problem is not shown")
	}
	es = es.DeepCopy()
	es.Status.Conditions[0].Reason = v1alpha1.ReasonStarting
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(es.Namespace).Update(context.Background(), es, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually(func() bool { return !problem() })
}
