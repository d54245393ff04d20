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
	"encoding/json"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestKubectlWakesWithPermissionOnlyOnTheWakeSubresource(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	directory := t.TempDir()
	path := "/apis/elasti.truefoundry.com/v1alpha1/namespaces/" + s.namespace + "/elastiservices/" + app.Name + "/wake"

	without, err := s.ServiceAccount(s.ctx, s.namespace, "reader", directory, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"elastiservices"}, Verbs: []string{"get", "list", "watch"},
	})
	s.check(err)
	if _, err := s.RunKubectl(s.ctx, without, "{}", "create", "--raw", path, "-f", "-"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Fatalf("without permission kubectl says %v, want Forbidden", err)
	}
	s.checkReplicas(app, 0)

	with, err := s.ServiceAccount(s.ctx, s.namespace, "waker", directory, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"elastiservices/wake"}, Verbs: []string{"create"},
	})
	s.check(err)
	output, err := s.RunKubectl(s.ctx, with, `{"spec": {"reason": "by hand"}}`, "create", "--raw", path, "-f", "-")
	s.check(err)
	var wake v1alpha1.WakeRequest
	s.check(json.Unmarshal([]byte(output), &wake))
	if !wake.Status.Scaled || wake.Status.Replicas != 1 {
		t.Errorf("the wake gets with %+v, want one replica, scaled by it", wake.Status)
	}
	s.checkReplicas(app, 1)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
}

func TestWakeNeverLowersReplicas(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{})
	s.check(app.Create(s.ctx))
	// No request needs the pods.
	s.check(app.Scale(s.ctx, 2))
	wake, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Wake(s.ctx, app.Name, &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	s.check(err)
	if wake.Status.Scaled || wake.Status.Replicas != 2 {
		t.Errorf("the wake gets with %+v, want two replicas, not scaled", wake.Status)
	}
	s.checkReplicas(app, 2)
}

func TestRequestWakesToTheMinimumOfReplicas(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) { spec.MinTargetReplicas = ptr.To[int32](2) }})
	s.get(app, "/")
	s.checkReplicas(app, 2)
}

func TestWakeGoesOnWithoutItsScaledObject(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "missing"}
	}})
	s.get(app, "/")
	s.checkReplicas(app, 1)
	s.awaitEvent(app, "AutoscalerNotResumed")
}

func TestServicesOfOneNameInTwoNamespacesWakeIndependently(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	one := s.asleep(cluster.ApplicationOptions{})
	other := s.asleepIn(s.newNamespace(), cluster.ApplicationOptions{})
	s.get(one, "/one")
	s.checkReplicas(one, 1)
	s.checkReplicas(other, 0)
	s.get(other, "/other")
	s.checkReplicas(other, 1)
}

func TestRequestWakesAgainWhilePodsOfTheLastTimeTerminate(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Linger: lingering})
	s.check(app.Create(s.ctx))
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	before := s.awaitPods(app, 1)[0]

	s.check(app.Scale(s.ctx, 0))
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeProxy))
	s.check(app.AwaitResolverSlice(s.ctx, true))
	response := s.awaitFromResolver(app)
	if strings.Contains(response.Body, before.Name) {
		t.Errorf("the response came from the terminating pod: %s", response.Body)
	}
	s.checkReplicas(app, 1)
	after, err := s.Host.CoreV1().Pods(s.namespace).Get(s.ctx, before.Name, metav1.GetOptions{})
	if err != nil || after.DeletionTimestamp == nil {
		t.Fatalf("the first pod should still be terminating, or the test shows nothing: %v", err)
	}
}
