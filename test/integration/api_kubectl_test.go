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
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The commands of a user, in the usual order.
func TestKubectlCommandsOfEveryday(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	kubectl := newKubectl(t, namespace)
	const manifest = `
apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata:
  name: app
spec:
  service: app
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app}
`
	// kube-apiserver gets the documents of a server that was unavailable once a minute,
	// and explain fails until then.
	eventuallyWithin(t, 3*time.Minute, "the cluster has the OpenAPI document of the group", func(ctx context.Context) string {
		index, err := kubectl.Run(ctx, "", "get", "--raw", "/openapi/v3")
		if err == nil && !strings.Contains(index, strings.TrimPrefix(groupPath, "/")+"/v1alpha1") {
			return "it is not in the index"
		}
		return errorText(err)
	})
	path := groupPath + "/v1alpha1/namespaces/" + namespace + "/elastiservices/app"
	for _, command := range []struct {
		typed string
		input string
		want  []string
	}{
		{"apply --server-side --filename=-", manifest, []string{"elastiservice.elasti.truefoundry.com/app serverside-applied"}},
		{"apply --server-side --filename=-", manifest, []string{"serverside-applied"}},
		{"diff --server-side --filename=-", manifest, nil},
		{"get elastiservice app", "", []string{"NAME", "MODE", "app"}},
		{"get elastiservices.elasti.truefoundry.com --output=name", "", []string{"elastiservice.elasti.truefoundry.com/app"}},
		{"get elastiservice app --output=yaml --show-managed-fields", "", []string{"cooldownPeriod: 900", "minTargetReplicas: 1", "f:scaleTargetRef", "operation: Apply"}},
		{"get elastiservices --field-selector=spec.service=app --output=name", "", []string{"/app"}},
		{"describe elastiservice app", "", []string{"Service:", "Min Target Replicas:", "Cooldown Period:"}},
		{"explain elastiservice.spec", "", []string{"scaleTargetRef", "cooldownPeriod", "seconds"}},
		{"explain elastiservice.spec.proxy.policy", "", []string{"pods", "share"}},
		{"explain elastiservice.status --recursive", "", []string{"conditions", "proxyPorts"}},
		{"wait elastiservice app --for=jsonpath={.status.mode}=proxy --timeout=30s", "", []string{"condition met"}},
		{"get elastiservices --field-selector=status.mode=proxy,spec.scaleTargetRef.name=app --output=name", "", []string{"/app"}},
		{"label elastiservice app team=shop", "", []string{"labeled"}},
		{"annotate elastiservice app note=mine", "", []string{"annotated"}},
		{`patch elastiservice app --type=merge --patch={"spec":{"cooldownPeriod":60}}`, "", []string{"patched"}},
		{`patch elastiservice app --subresource=status --type=strategic --patch={"status":{"conditions":[{"type":"Checked","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-02T03:04:05Z"}]}}`, "", []string{"patched"}},
		{`get elastiservice app --subresource=status --output=jsonpath={.status.conditions[?(@.type=="Checked")].lastTransitionTime}`, "", []string{"2026-01-02T03:04:05Z"}},
		{`patch elastiservice app --subresource=scale --type=merge --patch={"spec":{"replicas":2}}`, "", []string{"patched"}},
		{"get elastiservice app --subresource=scale --output=jsonpath={.kind}:{.spec.replicas}", "", []string{"Scale:2"}},
		{"scale elastiservice app --replicas=3", "", []string{"scaled"}},
		{"get --raw " + path, "", []string{`"cooldownPeriod":60`}},
		{"get --raw " + path + "/status", "", []string{`"kind":"ElastiService"`}},
		{"get --raw " + path + "/scale", "", []string{`"kind":"Scale"`, `"replicas":3`}},
		{"create --raw " + path + "/wake --filename=-", "{}", []string{`"kind":"WakeRequest"`, `"replicas":3`}},
		{"auth can-i create elastiservices --subresource=wake", "", []string{"yes"}},
		{"wait elastiservice app --for=jsonpath={.spec.cooldownPeriod}=60 --timeout=30s", "", []string{"condition met"}},
		{"delete elastiservice app --timeout=60s", "", []string{"deleted"}},
	} {
		output, err := kubectl.Run(t.Context(), command.input, strings.Fields(command.typed)...)
		if err != nil {
			t.Errorf("kubectl %s: %v", command.typed, err)
			continue
		}
		for _, want := range command.want {
			if !strings.Contains(output, want) {
				t.Errorf("kubectl %s does not show %q:\n%s", command.typed, want, output)
			}
		}
	}
	if list, err := elastiServices(namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d ElastiServices are left (error: %v)", len(list.Items), err)
	}
}
