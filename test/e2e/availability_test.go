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
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// The reason why a wake cannot succeed is reported before the clients time out: in
// conditions, an Event, the table of kubectl, the response and the waiting page.
func TestAWakeThatCannotSucceedReportsWhy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// prevent keeps an application from starting.
		prevent func(*scene, *cluster.Application)
		options cluster.ApplicationOptions
		reason  string
		words   string
	}{
		"image": {
			options: cluster.ApplicationOptions{Container: func(container *corev1.Container) { container.Image = "127.0.0.1:1/no/such/image:1" }},
			reason:  v1alpha1.ReasonImageNotPulled, words: "127.0.0.1:1/no/such/image:1",
		},
		"quota":  {prevent: (*scene).forbidPods, reason: v1alpha1.ReasonPodsNotCreated, words: "quota"},
		"node":   {prevent: (*scene).selectNoNode, reason: v1alpha1.ReasonUnschedulable, words: "nodes are available"},
		"volume": {prevent: (*scene).mountNothing, reason: v1alpha1.ReasonVolumeNotMounted, words: "no-such-settings"},
		"crash": {
			options: cluster.ApplicationOptions{Arguments: []string{"-no-such-flag"}},
			reason:  v1alpha1.ReasonContainerCrashed, words: "exit code",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			test.options.Spec = func(spec *v1alpha1.ElastiServiceSpec) {
				spec.Proxy = &v1alpha1.ProxySpec{HoldTimeoutSeconds: ptr.To[int32](20), WaitingPage: true}
			}
			app := s.asleep(test.options)
			if test.prevent != nil {
				test.prevent(s, app)
			}
			response, err := cluster.Get(s.ctx, app.URL("/"))
			s.check(err)
			if response.Status != http.StatusGatewayTimeout || !strings.Contains(response.Body, test.reason) || !strings.Contains(response.Body, test.words) {
				t.Errorf("a client gets %d %q, want 504 with %s and %q", response.Status, response.Body, test.reason, test.words)
			}
			s.checkProblem(app, test.reason, test.words)
		})
	}
}

// checkProblem expects that an ElastiService reports the reason why its target does not
// start.
func (s *scene) checkProblem(app *cluster.Application, reason, words string) {
	s.Helper()
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	for _, conditionType := range []string{v1alpha1.ConditionTargetAvailable, v1alpha1.ConditionReady} {
		found := meta.FindStatusCondition(elastiService.Status.Conditions, conditionType)
		if found == nil || found.Status != metav1.ConditionFalse || found.Reason != reason || !strings.Contains(found.Message, words) {
			s.Errorf("the condition %s is %+v", conditionType, found)
		}
	}
	s.awaitEvent(app, reason)
	table, err := s.RunKubectl(s.ctx, s.Kubeconfig, "", "get", "elastiservice", app.Name, "--namespace="+app.Namespace)
	s.check(err)
	if !strings.Contains(table, reason) {
		s.Errorf("kubectl get shows\n%s", table)
	}
	page := s.request(app, http.MethodGet, "/", http.Header{"Accept": {"text/html"}, "Sec-Fetch-Mode": {"navigate"}})
	if !strings.Contains(page.Body, reason+": ") {
		s.Errorf("the waiting page does not give the reason: %q", page.Body)
	}
	polled := s.request(app, http.MethodHead, "/", http.Header{"X-Elasti-Waiting": {"1"}})
	if problem, err := url.PathUnescape(polled.Header.Get("X-Elasti-Problem")); err != nil || !strings.Contains(problem, words) {
		s.Errorf("the waiting page gets the problem %q (error: %v)", problem, err)
	}
}

// forbidPods creates a quota that allows no more pods in the namespace.
func (s *scene) forbidPods(app *cluster.Application) {
	s.Helper()
	_, err := s.Host.CoreV1().ResourceQuotas(app.Namespace).Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	s.check(err)
}

// selectNoNode sets a node selector of an application's pods that no node matches.
func (s *scene) selectNoNode(app *cluster.Application) {
	s.Helper()
	s.check(s.patchPods(s.ctx, app, `{"nodeSelector":{"no-such-label":"true"}}`))
}

// mountNothing mounts a volume that does not exist into the pods of an application.
func (s *scene) mountNothing(app *cluster.Application) {
	s.Helper()
	s.check(s.patchPods(s.ctx, app, `{
		"volumes":[{"name":"settings","configMap":{"name":"no-such-settings"}}],
		"containers":[{"name":"application","volumeMounts":[{"name":"settings","mountPath":"/settings"}]}]}`))
}

// patchPods merges a patch with the specification of an application's pods.
func (s *scene) patchPods(ctx context.Context, app *cluster.Application, patch string) error {
	_, err := s.Host.AppsV1().Deployments(app.Namespace).Patch(ctx, app.Name, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"spec":{"template":{"spec":%s}}}`, patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("changing the pods of Deployment %s: %w", app.Name, err)
	}
	return nil
}
