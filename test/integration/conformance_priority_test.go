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

package integration

import (
	"net/http"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// Both API servers that a request passes say in the answer which FlowSchema
// it was classified to.
func TestWakesAndOurComponentsHaveTheirOwnFlowSchemas(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waker := newServiceAccount(t, namespace, "waker", mayWake)
	resolver, err := shared.AsServiceAccount(t.Context(), environment.SystemNamespace, environment.ResolverName)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		flowSchema string
		config     *rest.Config
	}{
		{"elasti-wakes", waker},
		{"elasti-components", resolver},
	} {
		t.Run(test.flowSchema, func(t *testing.T) {
			want, err := shared.Kubernetes.FlowcontrolV1().FlowSchemas().Get(t.Context(), test.flowSchema, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			client, err := rest.HTTPClientFor(test.config)
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, test.config.Host+wakePath(namespace, "app"), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				t.Fatalf("waking answers %s, want 201", response.Status)
			}
			classified := response.Header.Values(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
			if len(classified) != 2 {
				t.Errorf("%d servers have classified the wake, want the cluster's and ours", len(classified))
			}
			for _, uid := range classified {
				if uid != string(want.UID) {
					t.Errorf("it was classified to the FlowSchema with UID %s, want %s", uid, want.UID)
				}
			}
		})
	}
}
