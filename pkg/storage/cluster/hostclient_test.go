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
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// scriptedHost is a host cluster that responds with one of the responses after the other.
type scriptedHost struct {
	t         *testing.T
	responses []any
	// methods are those of the requests. It is for one client at a time.
	methods []string
}

// ServeHTTP implements http.Handler.
func (h *scriptedHost) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	h.methods = append(h.methods, request.Method)
	if len(h.responses) < len(h.methods) {
		h.t.Errorf("the request %s %s was not expected", request.Method, request.URL)
		http.Error(w, "not expected", http.StatusTeapot)
		return
	}
	response, code := h.responses[len(h.methods)-1], http.StatusOK
	if failure, ok := response.(*apierrors.StatusError); ok {
		status := failure.Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		response, code = status, int(status.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(response); err != nil {
		h.t.Error(err)
	}
}

func newScriptedClient(t *testing.T, responses ...any) (*hostClient, *scriptedHost) {
	t.Helper()
	host := &scriptedHost{t: t, responses: responses}
	server := httptest.NewServer(host)
	t.Cleanup(server.Close)
	client, err := newHostClient(&rest.Config{Host: server.URL}, server.Client(), "storedpods", "StoredPod")
	if err != nil {
		t.Fatal(err)
	}
	return client, host
}

// Several replicas write the marker at the same time, of which there is none at first. None
// of their readers gets an error for that.
func TestMarkerIsWrittenBesideOtherReplicas(t *testing.T) {
	resource := schema.GroupResource{Group: GroupVersion.Group, Resource: "storedpods"}
	notFound := apierrors.NewNotFound(resource, progressName)
	exists := apierrors.NewAlreadyExists(resource, progressName)
	conflict := apierrors.NewConflict(resource, progressName, nil)
	marker := &StoredObject{
		TypeMeta:   metav1.TypeMeta{Kind: "StoredPod", APIVersion: GroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: progressName, ResourceVersion: "7"},
	}
	for name, test := range map[string]struct {
		responses []any
		want      []string
	}{
		"there is one":                    {[]any{marker}, []string{"PATCH"}},
		"there is none":                   {[]any{notFound, marker}, []string{"PATCH", "POST"}},
		"another replica was first":       {[]any{notFound, exists, marker}, []string{"PATCH", "POST", "PATCH"}},
		"other replicas write it as well": {[]any{conflict, marker}, []string{"PATCH", "PATCH"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, host := newScriptedClient(t, test.responses...)
			if version, err := client.touch(t.Context(), "content"); err != nil || version != 7 {
				t.Errorf("got %d, %v", version, err)
			}
			if !slices.Equal(host.methods, test.want) {
				t.Errorf("the requests are %q, want %q", host.methods, test.want)
			}
		})
	}
}
