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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestSecondElastiServiceForAServiceIsRejected(t *testing.T) {
	client := elastiServices(newNamespace(t))
	if _, err := client.Create(t.Context(), newElastiService("first"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := client.Create(t.Context(), newElastiService("second"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.service") || !strings.Contains(err.Error(), `"first"`) {
		t.Errorf("creating returns %v, want it to name the field and the first ElastiService", err)
	}
	// As soon as the first is deleted, its Service is free.
	if err := client.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service is free again", func(ctx context.Context) string {
		if _, err := client.Create(ctx, newElastiService("second"), metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func TestBrokenSpecsAreRejectedAtAdmission(t *testing.T) {
	client := elastiServices(newNamespace(t))
	for _, test := range []struct {
		field  string
		change func(*v1alpha1.ElastiServiceSpec)
	}{
		{"spec.enabledPeriod.schedule", func(s *v1alpha1.ElastiServiceSpec) { s.EnabledPeriod = &v1alpha1.EnabledPeriod{Schedule: "@every 1h"} }},
		{"spec.enabledPeriod.duration", func(s *v1alpha1.ElastiServiceSpec) { s.EnabledPeriod = &v1alpha1.EnabledPeriod{Duration: "1d"} }},
		{"spec.enabledPeriod.timeZone", func(s *v1alpha1.ElastiServiceSpec) { s.EnabledPeriod = &v1alpha1.EnabledPeriod{TimeZone: "Berlin"} }},
		{"spec.triggers[0].type", func(s *v1alpha1.ElastiServiceSpec) { s.Triggers = []v1alpha1.ScaleTrigger{{Type: "cron"}} }},
		{"spec.triggers[0].metadata.query", func(s *v1alpha1.ElastiServiceSpec) {
			s.Triggers = []v1alpha1.ScaleTrigger{prometheusTrigger(`{"threshold":1}`)}
		}},
		{"spec.probeResponse[0].path.value", func(s *v1alpha1.ElastiServiceSpec) {
			s.ProbeResponse = []v1alpha1.ProbeResponseRule{{Path: &v1alpha1.PathMatch{Type: v1alpha1.PathMatchRegularExpression, Value: "("}, Response: v1alpha1.ProbeResponse{Status: 200}}}
		}},
	} {
		object := newElastiService("app")
		test.change(&object.Spec)
		if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.field) {
			t.Errorf("creating returns %v, want it to name %s", err, test.field)
		}
	}
}

func prometheusTrigger(metadata string) v1alpha1.ScaleTrigger {
	return v1alpha1.ScaleTrigger{Type: "prometheus", Metadata: &runtime.RawExtension{Raw: []byte(metadata)}}
}

// warnings keeps what a server warns about.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

// take returns the warnings since the last time.
func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	texts := strings.Join(w.texts, "\n")
	w.texts = nil
	return texts
}

func TestWhatCanBecomeRightIsWarnedAbout(t *testing.T) {
	namespace := newNamespace(t)
	seen := &warnings{}
	config := rest.CopyConfig(shared.Admin)
	config.WarningHandler = seen
	client := elastiClient(t, config).ElastiV1alpha1().ElastiServices(namespace)

	create := func(name string) string {
		object := newElastiService(name)
		object.Spec.Service, object.Spec.ScaleTargetRef.Name = name, name
		object.Spec.Triggers = []v1alpha1.ScaleTrigger{prometheusTrigger(`{"query":"up","threshold":1,"interval":"5s"}`)}
		if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return seen.take()
	}
	create("app")
	// The cluster is checked for a few writes a second, and the tests before this one
	// may have made many.
	attempt := 0
	eventually(t, "all is warned about", func(context.Context) string {
		attempt++
		name := fmt.Sprintf("app-%d", attempt)
		texts := create(name)
		for _, want := range []string{"spec.triggers[0].metadata.interval", `no Service "` + name + `" yet`, `no Deployment "` + name + `" yet`} {
			if !strings.Contains(texts, want) {
				return fmt.Sprintf("creating warns %q, want %q among it", texts, want)
			}
		}
		return ""
	})

	createApplication(t, namespace, 0)
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if texts := seen.take(); texts != "" {
		t.Errorf("a change of labels warns %q, want nothing", texts)
	}
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"triggers":null,"cooldownPeriod":60}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if texts := seen.take(); texts != "" {
		t.Errorf("a change of the spec, when all is there, warns %q, want nothing", texts)
	}
}

// A user that may write ElastiServices cannot make the server use a Secret that the user
// may not get.
func TestSecretOfATriggerNeedsThePermissionToGetIt(t *testing.T) {
	namespace := newNamespace(t)
	mayWrite := rbacv1.PolicyRule{APIGroups: []string{"elasti.truefoundry.com"}, Resources: []string{"elastiservices"}, Verbs: []string{"create", "update", "patch", "get"}}
	mayGet := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"monitoring"}, Verbs: []string{"get"}}
	author := elastiClient(t, newServiceAccount(t, namespace, "author", mayWrite, mayGet)).ElastiV1alpha1().ElastiServices(namespace)
	other := elastiClient(t, newServiceAccount(t, namespace, "other", mayWrite)).ElastiV1alpha1().ElastiServices(namespace)

	object := newElastiService("app")
	sendTo := func(server string) []byte {
		return fmt.Appendf(nil, `{"spec":{"triggers":[{"type":"prometheus","metadata":{"query":"up","threshold":1,"serverAddress":%q,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}}]}}`, server)
	}
	if err := json.Unmarshal(sendTo("http://prometheus"), object); err != nil {
		t.Fatal(err)
	}
	denied := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), `Secret "monitoring"`)
	}
	if _, err := other.Create(t.Context(), object, metav1.CreateOptions{}); !denied(err) {
		t.Errorf("creating without the permission: got %v, want it rejected", err)
	}
	if _, err := author.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating with the permission: %v", err)
	}
	if _, err := other.Patch(t.Context(), "app", types.MergePatchType, sendTo("http://elsewhere"), metav1.PatchOptions{}); !denied(err) {
		t.Errorf("sending it elsewhere without the permission: got %v, want it rejected", err)
	}
	if _, err := other.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("changing something else without the permission: %v", err)
	}
	if _, err := author.Patch(t.Context(), "app", types.MergePatchType, sendTo("http://elsewhere"), metav1.PatchOptions{}); err != nil {
		t.Errorf("sending it elsewhere with the permission: %v", err)
	}
}

func TestResourceQuotaLimitsTheNumber(t *testing.T) {
	namespace := newNamespace(t)
	const name = corev1.ResourceName("count/elastiservices.elasti.truefoundry.com")
	quotas := shared.Kubernetes.CoreV1().ResourceQuotas(namespace)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{name: resource.MustParse("0")}},
	}
	if _, err := quotas.Create(t.Context(), quota, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// kube-controller-manager discovers new kinds to count twice a minute, and then
	// syncs quotas that change.
	touches := 0
	eventuallyWithin(t, 2*time.Minute, "the quota counts ElastiServices", func(ctx context.Context) string {
		touches++
		touch := fmt.Appendf(nil, `{"spec":{"hard":{"count/configmaps":"%d"}}}`, 1000+touches)
		current, err := quotas.Patch(ctx, "one", types.MergePatchType, touch, metav1.PatchOptions{})
		if err != nil {
			return err.Error()
		}
		if _, ok := current.Status.Used[name]; !ok {
			return "it does not"
		}
		return ""
	})
	client := elastiServices(namespace)
	isExceeded := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
	}
	// The server checks what its watch has of the quota, so each change is awaited there. From
	// the last one on kube-controller-manager does not count anew: the server does.
	tryOne := func(ctx context.Context) error {
		_, err := client.Create(ctx, newElastiService("first"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually(t, "the server enforces the quota", func(ctx context.Context) string {
		if err := tryOne(ctx); !isExceeded(err) {
			return fmt.Sprintf("got %v, want the quota exceeded", err)
		}
		return ""
	})
	one := fmt.Appendf(nil, `{"spec":{"hard":{%q:"1"}}}`, name)
	if _, err := quotas.Patch(t.Context(), "one", types.MergePatchType, one, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server allows one", func(ctx context.Context) string {
		if err := tryOne(ctx); err != nil {
			return err.Error()
		}
		return ""
	})
	createElastiService(t, namespace, newElastiService("first"))
	second := newElastiService("second")
	second.Spec.Service = "other"
	if _, err := client.Create(t.Context(), second, metav1.CreateOptions{}); !isExceeded(err) {
		t.Errorf("the second: got %v, want the quota exceeded", err)
	}
	// A wake creates no object that a quota counts.
	createApplication(t, namespace, 0)
	if _, err := client.Wake(t.Context(), "first", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Errorf("waking under an exhausted quota: %v", err)
	}
}

// The API does not change manifests of KubeElasti in Git, so that a GitOps tool finds no
// difference.
func TestManifestsOfKubeElastiShowNoDiff(t *testing.T) {
	kubectl := newKubectl(t, newNamespace(t))
	const manifest = `apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata:
  name: app
spec:
  service: app
  cooldownPeriod: 5
  scaleTargetRef:
    apiVersion: apps/v1
    kind: deployments
    name: app
  triggers:
    - type: prometheus
      metadata:
        query: sum(rate(http_requests_total[1m])) or vector(0)
        serverAddress: http://prometheus.monitoring:9090
        threshold: "0.5"
  autoscaler:
    name: app
    type: keda
`
	if _, err := kubectl.Run(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, arguments := range [][]string{{"diff", "-f", "-"}, {"diff", "--server-side", "-f", "-"}} {
		if difference, err := kubectl.Run(t.Context(), manifest, slices.Concat(arguments, []string{"--field-manager=kubectl-client-side-apply"})...); err != nil {
			t.Errorf("kubectl %v: %v\n%s", arguments, err, difference)
		}
	}
}
