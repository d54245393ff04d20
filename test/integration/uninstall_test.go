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
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// uninstallFinalizer keeps the permissions of the server until the cluster is
// as it was.
const uninstallFinalizer = "elasti.truefoundry.com/uninstall"

// uninstallOrders are orders in which the parts of an installation are deleted.
var uninstallOrders = []struct {
	name string
	// prepare runs before the server starts.
	prepare func(t *testing.T)
	// begin deletes what is deleted first. When it returns true, the server is
	// sent SIGTERM, as a kubelet does when its pod was deleted.
	begin func(t *testing.T) (stop bool)
}{
	{
		name:  "all at once",
		begin: func(t *testing.T) bool { deleteManifests(t); return true },
	},
	{
		name:  "permissions first",
		begin: func(t *testing.T) bool { deletePermissions(t); return false },
	},
	{
		name:    "Deployment first",
		prepare: createServerDeployment,
		begin:   func(t *testing.T) bool { deleteServerDeployment(t); return true },
	},
}

func TestUninstallingInAnyOrderLeavesTargetsAwake(t *testing.T) {
	scaledObjects.install(t)
	for _, order := range uninstallOrders {
		t.Run(order.name, func(t *testing.T) {
			stopServer(t)
			if order.prepare != nil {
				order.prepare(t)
			}
			startAgain(t)
			waitForFinalizers(t)
			asleep, awake := newNamespace(t), newNamespace(t)
			putToSleepWithAutoscaler(t, asleep)
			createApplication(t, awake, 1)
			createElastiService(t, awake, newElastiService("app"))
			setReady(t, awake, runPod(t, awake, "app"), true)
			waitForMode(t, awake, v1alpha1.ModeServe)
			before := map[string]*corev1.Service{asleep: readService(t, asleep), awake: readService(t, awake)}

			var stopping sync.WaitGroup
			if order.begin(t) {
				stopping.Go(func() {
					if err := shared.Server.Process().Stop(); err != nil {
						t.Error(err)
					}
				})
			}
			pod := runPod(t, asleep, "app")
			if len(resolverSlices(t.Context(), t, asleep)) == 0 {
				t.Error("the resolvers are out of the path before a pod is ready")
			}
			setReady(t, asleep, pod, true)
			for namespace, service := range before {
				waitForNoResolverSlices(t, namespace)
				waitForOnlyService(t, service)
				if replicas := desiredReplicas(t, namespace); replicas != 1 {
					t.Errorf("the target is left at %d replicas, want 1", replicas)
				}
			}
			expectResumed(t, asleep)
			waitForNoFinalizers(t)
			stopping.Wait()

			deleteManifests(t)
			if err := shared.Server.Process().Stop(); err != nil {
				t.Error(err)
			}
			if err := shared.Reinstall(t.Context()); err != nil {
				t.Fatalf("installing again: %v", err)
			}
			// The stored objects are intact.
			scaleTarget(t, asleep, 0)
			removePod(t, asleep, pod)
			waitForMode(t, asleep, v1alpha1.ModeProxy)
		})
	}
}

// deleteManifests deletes the product, and not what it has stored in the host cluster.
func deleteManifests(t *testing.T) {
	t.Helper()
	if _, err := newKubectl(t, "default").Run(t.Context(), "", "delete", "--kustomize", filepath.Join(shared.Manifests(), "base"), "--wait=false", "--ignore-not-found"); err != nil {
		t.Fatal(err)
	}
}

func deletePermissions(t *testing.T) {
	t.Helper()
	for _, arguments := range [][]string{
		{"clusterrolebinding", environment.ServerName},
		{"clusterrole", environment.ServerName},
		{"serviceaccount", environment.ServerName, "--namespace=" + environment.SystemNamespace},
	} {
		if _, err := newKubectl(t, "default").Run(t.Context(), "", append([]string{"delete", "--wait=false"}, arguments...)...); err != nil {
			t.Fatal(err)
		}
	}
}

// createServerDeployment creates the Deployment of the server, without a pod:
// the server is a process here.
func createServerDeployment(t *testing.T) {
	t.Helper()
	labels := map[string]string{"app.kubernetes.io/name": environment.ServerName}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: environment.ServerName},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "server"}}},
			},
		},
	}
	if _, err := shared.Kubernetes.AppsV1().Deployments(environment.SystemNamespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Deployment of the server: %v", err)
	}
}

func deleteServerDeployment(t *testing.T) {
	t.Helper()
	if err := shared.Kubernetes.AppsV1().Deployments(environment.SystemNamespace).Delete(t.Context(), environment.ServerName, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the Deployment of the server: %v", err)
	}
}

func waitForFinalizers(t *testing.T) {
	t.Helper()
	eventually(t, "the permissions of the server are protected", func(ctx context.Context) string {
		return describeFinalizers(ctx, func(protected bool, err error) bool { return err == nil && protected })
	})
}

func waitForNoFinalizers(t *testing.T) {
	t.Helper()
	eventually(t, "the permissions of the server are not protected any more", func(ctx context.Context) string {
		return describeFinalizers(ctx, func(protected bool, err error) bool { return apierrors.IsNotFound(err) || err == nil && !protected })
	})
}

// describeFinalizers returns which permission of the server is not as wanted.
func describeFinalizers(ctx context.Context, wanted func(protected bool, err error) bool) string {
	role, err := shared.Kubernetes.RbacV1().ClusterRoles().Get(ctx, environment.ServerName, metav1.GetOptions{})
	if !wanted(slices.Contains(role.GetFinalizers(), uninstallFinalizer), err) {
		return fmt.Sprintf("the ClusterRole is %+v (error: %v)", role.ObjectMeta, err)
	}
	binding, err := shared.Kubernetes.RbacV1().ClusterRoleBindings().Get(ctx, environment.ServerName, metav1.GetOptions{})
	if !wanted(slices.Contains(binding.GetFinalizers(), uninstallFinalizer), err) {
		return fmt.Sprintf("the ClusterRoleBinding is %+v (error: %v)", binding.ObjectMeta, err)
	}
	account, err := shared.Kubernetes.CoreV1().ServiceAccounts(environment.SystemNamespace).Get(ctx, environment.ServerName, metav1.GetOptions{})
	if !wanted(slices.Contains(account.GetFinalizers(), uninstallFinalizer), err) {
		return fmt.Sprintf("the ServiceAccount is %+v (error: %v)", account.ObjectMeta, err)
	}
	return ""
}

func readService(t *testing.T, namespace string) *corev1.Service {
	t.Helper()
	service, err := shared.Kubernetes.CoreV1().Services(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the public Service: %v", err)
	}
	return service
}

// waitForOnlyService waits until a Service, as it was, is all that is left.
func waitForOnlyService(t *testing.T, service *corev1.Service) {
	t.Helper()
	eventually(t, "only the public Service is left", func(ctx context.Context) string {
		services, err := shared.Kubernetes.CoreV1().Services(service.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		if len(services.Items) != 1 {
			return fmt.Sprintf("there are %d Services", len(services.Items))
		}
		if services.Items[0].ResourceVersion != service.ResourceVersion {
			return "the public Service was changed"
		}
		return ""
	})
}
