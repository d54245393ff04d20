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

package scaling

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// fakeServer is a Kubernetes API server with discovery, scales and any JSON
// object, optimistic concurrency included.
type fakeServer struct {
	t      *testing.T
	server *httptest.Server
	clock  *clocktesting.FakeClock

	mu sync.Mutex
	// resources is the discovery, keyed by group version.
	resources map[string][]metav1.APIResource
	// objects is keyed by request path.
	objects map[string]map[string]any
	version int
	// writes lists "METHOD path" of the writes that were carried out.
	writes []string
	// managers are the field managers of all requested writes.
	managers []string
	// requests counts requests by path.
	requests map[string]int
	// beforeWrite, if set, is called before each write is handled.
	beforeWrite func(path string)
	// rejectsPatches makes every JSON patch forbidden.
	rejectsPatches bool
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeServer{
		t:         t,
		clock:     clocktesting.NewFakeClock(metav1.Now().Time),
		resources: map[string][]metav1.APIResource{},
		objects:   map[string]map[string]any{},
		requests:  map[string]int{},
	}
	f.server = httptest.NewServer(f)
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeServer) client() *Client {
	f.t.Helper()
	client, err := NewClient(Options{Config: &rest.Config{Host: f.server.URL, QPS: -1}, Clock: f.clock})
	if err != nil {
		f.t.Fatal(err)
	}
	return client
}

// serve adds a resource with a scale subresource to the discovery.
func (f *fakeServer) serve(groupVersion, kind, resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resources[groupVersion] = append(f.resources[groupVersion],
		metav1.APIResource{Name: resource, Kind: kind, Namespaced: true},
		metav1.APIResource{Name: resource + "/scale", Kind: "Scale", Namespaced: true})
}

func (f *fakeServer) put(path string, object any) {
	f.t.Helper()
	encoded, err := json.Marshal(object)
	if err != nil {
		f.t.Fatal(err)
	}
	decoded := map[string]any{}
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.store(path, decoded)
}

func (f *fakeServer) putScale(path, namespace, name string, replicas int32) {
	f.t.Helper()
	f.put(path, &autoscalingv1.Scale{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	})
}

// annotations returns the annotations of the object at path.
func (f *fakeServer) annotations(path string) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[string]string{}
	metadata, _ := f.objects[path]["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	for key, value := range annotations {
		found[key] = value.(string)
	}
	return found
}

func (f *fakeServer) written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.writes...)
}

func (f *fakeServer) requested(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[path]
}

func (f *fakeServer) store(path string, object map[string]any) {
	f.version++
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}
	metadata["resourceVersion"] = strconv.Itoa(f.version)
	f.objects[path] = object
}

func (f *fakeServer) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet && f.beforeWrite != nil {
		f.beforeWrite(request.URL.Path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests[request.URL.Path]++
	if request.Method != http.MethodGet {
		f.managers = append(f.managers, request.URL.Query().Get("fieldManager"))
	}
	groupVersion := strings.TrimPrefix(strings.TrimPrefix(request.URL.Path, "/apis/"), "/api/")
	if resources, ok := f.resources[groupVersion]; ok {
		f.respond(writer, http.StatusOK, &metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: groupVersion, APIResources: resources})
		return
	}
	current, ok := f.objects[request.URL.Path]
	if !ok {
		if strings.Contains(request.URL.Path, "/namespaces/") {
			f.fail(writer, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "thing"))
			return
		}
		http.NotFound(writer, request)
		return
	}
	if request.Method == http.MethodGet {
		f.respond(writer, http.StatusOK, current)
		return
	}
	f.write(writer, request, current)
}

func (f *fakeServer) write(writer http.ResponseWriter, request *http.Request, current map[string]any) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		f.t.Error(err)
	}
	if request.Header.Get("Content-Type") == string(types.JSONPatchType) {
		f.patch(writer, request, current, body)
		return
	}
	sent := map[string]any{}
	if err := json.Unmarshal(body, &sent); err != nil {
		f.t.Error(err)
	}
	if sent["metadata"].(map[string]any)["resourceVersion"] != current["metadata"].(map[string]any)["resourceVersion"] {
		f.fail(writer, apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "thing", nil))
		return
	}
	object := sent
	if request.Method == http.MethodPatch {
		before, _ := json.Marshal(current)
		after, err := jsonpatch.MergePatch(before, body)
		if err != nil {
			f.t.Error(err)
		}
		object = map[string]any{}
		if err := json.Unmarshal(after, &object); err != nil {
			f.t.Error(err)
		}
	}
	if request.URL.Query().Get("dryRun") == "" {
		f.writes = append(f.writes, request.Method+" "+request.URL.Path)
		f.store(request.URL.Path, object)
	}
	f.respond(writer, http.StatusOK, object)
}

// patch carries out a JSON patch.
func (f *fakeServer) patch(writer http.ResponseWriter, request *http.Request, current map[string]any, body []byte) {
	if f.rejectsPatches {
		f.fail(writer, apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "thing", nil))
		return
	}
	operations, err := jsonpatch.DecodePatch(body)
	if err != nil {
		f.t.Error(err)
	}
	before, err := json.Marshal(current)
	if err != nil {
		f.t.Error(err)
	}
	after, err := operations.Apply(before)
	if err != nil {
		f.fail(writer, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{Resource: "things"}, "thing", err.Error(), 0, false))
		return
	}
	object := map[string]any{}
	if err := json.Unmarshal(after, &object); err != nil {
		f.t.Error(err)
	}
	f.writes = append(f.writes, request.Method+" "+request.URL.Path)
	f.store(request.URL.Path, object)
	f.respond(writer, http.StatusOK, object)
}

func (f *fakeServer) fail(writer http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	f.respond(writer, int(status.Code), status)
}

func (f *fakeServer) respond(writer http.ResponseWriter, code int, object any) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(code)
	if err := json.NewEncoder(writer).Encode(object); err != nil {
		f.t.Error(err)
	}
}
