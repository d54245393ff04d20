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

package elastiservice_test

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fullElastiService has something in every part of an ElastiService.
const fullElastiService = `{
  "apiVersion": "elasti.truefoundry.com/v1alpha1", "kind": "ElastiService",
  "metadata": {"name": "cart", "labels": {"team": "checkout"}, "annotations": {"note": "<kept & as it is>"}, "finalizers": ["example.com/one"]},
  "spec": {
    "service": "cart", "minTargetReplicas": 2, "cooldownPeriod": 60,
    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cart"},
    "triggers": [
      {"type": "prometheus", "metadata": {"query": "sum(rate(requests[1m]))", "serverAddress": "http://prometheus:9090", "threshold": 0.5, "unknown": {"kept": [1, 2.50, null]}}},
      {"type": "traffic", "metadata": {}}
    ],
    "autoscaler": {"type": "keda", "name": "cart"},
    "enabledPeriod": {"schedule": "0 8 * * 1-5", "duration": "8h"},
    "probeResponse": [{"path": {"value": "/healthz"}, "method": "GET", "headers": [{"name": "User-Agent", "type": "RegularExpression", "value": "kube-probe/.*"}], "response": {"status": 200, "body": "ok"}}],
    "proxy": {"policy": "Always", "maxPending": 7, "readiness": "Endpoints"}
  }
}`

// The response to a write is made from what was encoded, and that to a read from
// what was stored. Clients see the same bytes.
func TestWritesReturnTheSameBytesAsReads(t *testing.T) {
	s := startServer(t, nil)
	client := s.client.ElastiV1alpha1().RESTClient()
	const path = "/apis/elasti.truefoundry.com/v1alpha1/namespaces/" + namespace + "/elastiservices"
	read := func() []byte {
		t.Helper()
		response, err := client.Get().AbsPath(path, "cart").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	compare := func(what string, response []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %s", what, err, response)
		}
		if want := read(); string(response) != string(want) {
			t.Errorf("%s returns\n%s\nand a read\n%s", what, response, want)
		}
	}
	response, err := client.Post().AbsPath(path).Body([]byte(fullElastiService)).DoRaw(t.Context())
	compare("creating", response, err)

	patch := func(kind types.PatchType, body string, subresource ...string) ([]byte, error) {
		return client.Patch(kind).AbsPath(append([]string{path, "cart"}, subresource...)...).Param("fieldManager", "test").Body([]byte(body)).DoRaw(t.Context())
	}
	response, err = patch(types.MergePatchType, `{"metadata":{"labels":{"team":null,"new":"label"}},"spec":{"enabledPeriod":null}}`)
	compare("a merge patch", response, err)
	response, err = patch(types.MergePatchType, `{"metadata":{"labels":{"new":"label"}}}`)
	compare("a patch that changes nothing", response, err)
	response, err = patch(types.ApplyYAMLPatchType, `{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","metadata":{"annotations":{"applied":"too"}}}`)
	compare("server-side apply", response, err)
	response, err = patch(types.MergePatchType, `{"status":{"conditions":[{"type":"Checked","status":"True","reason":"Asleep","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`, "status")
	compare("a patch of the status", response, err)

	object := map[string]any{}
	if err := json.Unmarshal(read(), &object); err != nil {
		t.Fatal(err)
	}
	object["spec"].(map[string]any)["cooldownPeriod"] = 90
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	response, err = client.Put().AbsPath(path, "cart").Body(body).DoRaw(t.Context())
	compare("an update", response, err)

	// With a finalizer, a delete is a write too.
	response, err = client.Delete().AbsPath(path, "cart").Body(&metav1.DeleteOptions{}).DoRaw(t.Context())
	compare("a delete", response, err)
}
