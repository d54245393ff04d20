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

// What a write answers comes from what was encoded, and what a read answers from
// what was stored. Clients see the same bytes.
func TestWhatAWriteAnswersIsWhatAReadAnswers(t *testing.T) {
	s := startServer(t, nil)
	client := s.client.ElastiV1alpha1().RESTClient()
	const path = "/apis/elasti.truefoundry.com/v1alpha1/namespaces/" + namespace + "/elastiservices"
	read := func() []byte {
		t.Helper()
		answer, err := client.Get().AbsPath(path, "cart").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	compare := func(what string, answer []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %s", what, err, answer)
		}
		if want := read(); string(answer) != string(want) {
			t.Errorf("%s answers\n%s\nand a read\n%s", what, answer, want)
		}
	}
	answer, err := client.Post().AbsPath(path).Body([]byte(fullElastiService)).DoRaw(t.Context())
	compare("creating", answer, err)

	patch := func(kind types.PatchType, body string, subresource ...string) ([]byte, error) {
		return client.Patch(kind).AbsPath(append([]string{path, "cart"}, subresource...)...).Param("fieldManager", "test").Body([]byte(body)).DoRaw(t.Context())
	}
	answer, err = patch(types.MergePatchType, `{"metadata":{"labels":{"team":null,"new":"label"}},"spec":{"enabledPeriod":null}}`)
	compare("a merge patch", answer, err)
	answer, err = patch(types.MergePatchType, `{"metadata":{"labels":{"new":"label"}}}`)
	compare("a patch that changes nothing", answer, err)
	answer, err = patch(types.ApplyYAMLPatchType, `{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","metadata":{"annotations":{"applied":"too"}}}`)
	compare("server-side apply", answer, err)
	answer, err = patch(types.MergePatchType, `{"status":{"conditions":[{"type":"Checked","status":"True","reason":"Asleep","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`, "status")
	compare("a patch of the status", answer, err)

	object := map[string]any{}
	if err := json.Unmarshal(read(), &object); err != nil {
		t.Fatal(err)
	}
	object["spec"].(map[string]any)["cooldownPeriod"] = 90
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	answer, err = client.Put().AbsPath(path, "cart").Body(body).DoRaw(t.Context())
	compare("an update", answer, err)

	// With a finalizer, a delete is a write too.
	answer, err = client.Delete().AbsPath(path, "cart").Body(&metav1.DeleteOptions{}).DoRaw(t.Context())
	compare("a delete", answer, err)
}
