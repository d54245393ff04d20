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

package properties

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	appLabel = "app"
	// bystander is a Deployment at zero that no ElastiService names.
	bystander = "database"
	// tenantCount is how many namespaces there are at a time.
	tenantCount = 3
	// leaseTime is longer than the expiry of the Lease of a dead leader and the start of
	// the next one.
	leaseTime = 40 * time.Second
)

// The objects that can be in the namespace of a tenant. At first ElastiServices have the
// names of their Services; two of them share a target.
var (
	targetNames  = []string{"web", "api"}
	serviceNames = []string{"web", "api", "extra"}
	targetOf     = map[string]string{"web": "web", "api": "api", "extra": "web"}
)

// testbed is the cluster and the record of the actions.
type testbed struct {
	control *environment.Environment
	servers *servers
	history *history
	// tenants are the namespaces, which are replaced when they are deleted.
	tenants [tenantCount]*tenant
	// deletedNamespaces are the namespaces that were deleted, moves counts them.
	deletedNamespaces map[string]bool
	moves             int
	// round counts the rounds.
	round   int
	touched touched
	// failures are invalid responses.
	failures []string
	// wakes are the targets that were woken in this round and not put to sleep.
	wakes map[types.NamespacedName]bool
	// leftAtZero are the targets that were at zero without an ElastiService: a user has
	// scaled them to zero, or created them so.
	leftAtZero map[types.NamespacedName]bool
	// released are the targets whose ElastiService was deleted in this round.
	released map[types.NamespacedName]bool
	// orphaned are the targets whose ElastiService was deleted without its finalizer in
	// this round.
	orphaned map[types.NamespacedName]bool
	// disturbed is when servers were last ended or their store was unavailable. There may
	// be no controller for leaseTime then, which misses changes of the store.
	disturbed time.Time
	// empty is true when there was no ElastiService in the last quiet period: the next
	// round creates some.
	empty bool
	// mayBeLost is true from when the store was lost or restored until it has objects
	// again.
	mayBeLost bool
	// onlyInStore are the targets that sleep while their Service is deleted: no resolver is
	// in their path, and a private Service records them only until a tenant edits it.
	onlyInStore map[types.NamespacedName]bool
	// editedPrivate and editedSlices are the Services of which a tenant has edited or
	// deleted the private Service or the resolver slice, until the server has put them
	// back. Where their ElastiService is lost before that, and both are edited, nothing
	// records the target.
	editedPrivate, editedSlices map[types.NamespacedName]bool
}

// tenant is one namespace and the clients that work in it.
type tenant struct {
	namespace string
	// forger is an administrator of the namespace that may also write statuses.
	forger       kubernetes.Interface
	forgerElasti elasticlientset.Interface
}

// newTestbed starts a control plane with two servers, and applications of tenants.
func newTestbed(t *testing.T) *testbed {
	t.Helper()
	control, err := environment.Start(t.Context())
	if err != nil {
		t.Fatalf("starting the test environment: %v", err)
	}
	t.Cleanup(func() {
		if err := control.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the logs of the test environment are in %s", control.Directory)
			return
		}
		if err := control.Remove(); err != nil {
			t.Error(err)
		}
	})
	w := &testbed{
		control: control, history: newHistory(), deletedNamespaces: map[string]bool{}, touched: newTouched(), wakes: map[types.NamespacedName]bool{}, leftAtZero: map[types.NamespacedName]bool{}, released: map[types.NamespacedName]bool{},
		onlyInStore: map[types.NamespacedName]bool{}, orphaned: map[types.NamespacedName]bool{}, editedPrivate: map[types.NamespacedName]bool{}, editedSlices: map[types.NamespacedName]bool{},
	}
	runKubelet(t, control)
	w.history.follow(t, control.Kubernetes)
	if w.servers, err = startServers(t, control); err != nil {
		t.Fatal(err)
	}
	for number := range w.tenants {
		if err := w.createTenant(t.Context(), number); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// createTenant creates the namespace of a tenant and its objects.
func (w *testbed) createTenant(ctx context.Context, number int) error {
	namespace := fmt.Sprintf("tenant-%d-%d", number, w.moves)
	if _, err := w.control.Kubernetes.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	w.tenants[number] = &tenant{namespace: namespace}
	errs := []error{w.createForger(ctx, w.tenants[number]), w.createDeployment(ctx, namespace, bystander, 0)}
	for _, name := range targetNames {
		errs = append(errs, w.createDeployment(ctx, namespace, name, int32(number%2)))
	}
	for _, name := range serviceNames {
		errs = append(errs, w.createService(ctx, namespace, name), w.createElastiService(ctx, namespace, name, targetOf[name]))
	}
	return errors.Join(errs...)
}

func (w *testbed) createDeployment(ctx context.Context, namespace, name string, replicas int32) error {
	w.touch(deployment, namespace, name)
	labels := map[string]string{appLabel: name}
	object := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: ptr.To(false),
					Containers:                   []corev1.Container{{Name: name, Image: name, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
				},
			},
		},
	}
	_, err := w.control.Kubernetes.AppsV1().Deployments(namespace).Create(ctx, object, metav1.CreateOptions{})
	if err == nil {
		w.scaledByHand(namespace, name, replicas)
	}
	return err
}

func (w *testbed) createService(ctx context.Context, namespace, name string) error {
	w.touch(service, namespace, name)
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{appLabel: targetOf[name]}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
	}}
	_, err := w.control.Kubernetes.CoreV1().Services(namespace).Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (w *testbed) createElastiService(ctx context.Context, namespace, name, target string) error {
	object := &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ElastiServiceSpec{
			ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: target},
			Service:        name,
		},
	}
	_, err := w.control.Elasti.ElastiV1alpha1().ElastiServices(namespace).Create(ctx, object, metav1.CreateOptions{})
	return err
}

// touch records that the test changes an object in this round.
func (w *testbed) touch(of kind, namespace, name string) {
	w.touched.objects[keyOf(of, namespace, name)] = true
}

// scaledByHand records the number of replicas that a user has set.
func (w *testbed) scaledByHand(namespace, name string, replicas int32) {
	target := types.NamespacedName{Namespace: namespace, Name: name}
	delete(w.wakes, target)
	if replicas == 0 {
		w.leftAtZero[target] = true
	} else {
		delete(w.leftAtZero, target)
	}
}

// fail records an invalid response.
func (w *testbed) fail(format string, arguments ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, arguments...))
}
