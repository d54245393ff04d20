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
	"math/rand/v2"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// action does something to the testbed, and returns what. Its choices follow from
// random alone, so that a seed determines it. An error is a response like others: what
// is done may not be possible just then.
type action func(ctx context.Context, w *testbed, random *rand.Rand) (what string, err error)

// choose returns an action. Slow actions are rare.
func choose(random *rand.Rand) action {
	weighted := []struct {
		weight int
		action action
	}{
		{3, createElastiService}, {10, applyElastiServices}, {3, deleteElastiService}, {2, removeFinalizer}, {1, removeAllFinalizers},
		{4, changeTarget}, {3, changeService}, {2, changeServiceToMissing}, {3, changePolicy},
		{16, putToSleep}, {12, wake},
		{8, scaleByHand}, {2, deleteDeployment}, {5, createDeployment},
		{3, deleteService}, {8, createService}, {6, editService},
		{3, deleteResolverSlice}, {2, editResolverSlice}, {2, deletePrivateService}, {2, editPrivateService},
		{1, forgePrivateService}, {1, forgeResolverSlice}, {1, forgeStatus},
		{2, makeResolverUnready}, {4, makeResolversReady}, {2, replaceResolver},
		{1, deleteNamespace},
		{1, restartServer}, {1, killServer}, {1, changeWhileNoControllerRuns}, {1, backUpStore}, {1, restoreStore}, {1, loseStore},
	}
	total := 0
	for _, candidate := range weighted {
		total += candidate.weight
	}
	chosen := random.IntN(total)
	for _, candidate := range weighted {
		if chosen -= candidate.weight; chosen < 0 {
			return candidate.action
		}
	}
	panic("no action was chosen")
}

func (w *testbed) anyTenant(random *rand.Rand) *tenant { return w.tenants[random.IntN(len(w.tenants))] }

func anyOf(random *rand.Rand, names []string) string { return names[random.IntN(len(names))] }

func (w *testbed) elastiServices(namespace string) elastiv1alpha1client.ElastiServiceInterface {
	return w.control.Elasti.ElastiV1alpha1().ElastiServices(namespace)
}

// targetOf returns the target of an ElastiService as it is now.
func (w *testbed) targetOf(ctx context.Context, namespace, name string) (types.NamespacedName, error) {
	object, err := w.elastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return types.NamespacedName{}, err
	}
	return types.NamespacedName{Namespace: namespace, Name: object.Spec.ScaleTargetRef.Name}, nil
}

func createElastiService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return fmt.Sprintf("create ElastiService %s/%s", namespace, name), w.createElastiService(ctx, namespace, name, targetOf[name])
}

// applyElastiServices creates all ElastiServices that a tenant may have, as a GitOps tool
// does.
func applyElastiServices(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace := w.anyTenant(random).namespace
	var errs []error
	for _, name := range serviceNames {
		if err := w.createElastiService(ctx, namespace, name, targetOf[name]); !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	return fmt.Sprintf("apply all ElastiServices of %s", namespace), errors.Join(errs...)
}

// applyAllElastiServices does that for all tenants.
func applyAllElastiServices(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	var errs []error
	for _, tenant := range w.tenants {
		for _, name := range serviceNames {
			if err := w.createElastiService(ctx, tenant.namespace, name, targetOf[name]); !apierrors.IsAlreadyExists(err) {
				errs = append(errs, err)
			}
		}
	}
	return "apply all ElastiServices", errors.Join(errs...)
}

func deleteElastiService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	what := fmt.Sprintf("delete ElastiService %s/%s", namespace, name)
	target, err := w.targetOf(ctx, namespace, name)
	if err != nil {
		return what, err
	}
	w.released[target] = true
	return what, w.elastiServices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// removeFinalizer deletes an ElastiService, and does not let the server clean up.
func removeFinalizer(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return fmt.Sprintf("delete ElastiService %s/%s and remove its finalizer", namespace, name), w.removeFinalizer(ctx, namespace, name)
}

func (w *testbed) removeFinalizer(ctx context.Context, namespace, name string) error {
	target, err := w.targetOf(ctx, namespace, name)
	if err != nil {
		return err
	}
	if err := w.elastiServices(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	w.orphaned[target] = true
	_, err = w.elastiServices(namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	return err
}

// removeAllFinalizers does that to all ElastiServices: the store has none afterwards.
func removeAllFinalizers(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	const what = "delete all ElastiServices and remove their finalizers"
	list, err := w.elastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return what, err
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, w.removeFinalizer(ctx, list.Items[i].Namespace, list.Items[i].Name))
	}
	return what, errors.Join(errs...)
}

func (w *testbed) patchElastiService(ctx context.Context, namespace, name, patch string) (string, error) {
	_, err := w.elastiServices(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return fmt.Sprintf("patch ElastiService %s/%s: %s", namespace, name, patch), err
}

func changeTarget(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	// A target that was woken is not managed by it any more, and another ElastiService
	// may put it to sleep.
	clear(w.wakes)
	return w.patchElastiService(ctx, namespace, name, fmt.Sprintf(`{"spec":{"scaleTargetRef":{"name":%q}}}`, anyOf(random, targetNames)))
}

func changeService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return w.patchElastiService(ctx, namespace, name, fmt.Sprintf(`{"spec":{"service":%q}}`, anyOf(random, serviceNames)))
}

// changeServiceToMissing gives the Service a name that no Service ever has.
func changeServiceToMissing(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return w.patchElastiService(ctx, namespace, name, `{"spec":{"service":"missing"}}`)
}

func changePolicy(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	policy := anyOf(random, []string{string(v1alpha1.ProxyAlways), string(v1alpha1.ProxyWhenAsleep)})
	return w.patchElastiService(ctx, namespace, name, fmt.Sprintf(`{"spec":{"minTargetReplicas":%d,"proxy":{"policy":%q}}}`, 1+random.IntN(2), policy))
}

// putToSleep requests the sleep of a target, often through all of its ElastiServices,
// without which it does not sleep.
func putToSleep(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name, all := w.anyTenant(random).namespace, anyOf(random, serviceNames), random.IntN(4) > 0
	what := fmt.Sprintf("put the target of ElastiService %s/%s to sleep", namespace, name)
	target, err := w.targetOf(ctx, namespace, name)
	if err != nil {
		return what, err
	}
	if !all {
		return what, w.requestSleep(ctx, target, name)
	}
	list, err := w.elastiServices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return what, err
	}
	var errs []error
	for i := range list.Items {
		if list.Items[i].Spec.ScaleTargetRef.Name == target.Name {
			errs = append(errs, w.requestSleep(ctx, target, list.Items[i].Name))
		}
	}
	return what + ", and all others of that target", errors.Join(errs...)
}

func (w *testbed) requestSleep(ctx context.Context, target types.NamespacedName, name string) error {
	delete(w.wakes, target)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: name}}
	_, err := w.elastiServices(target.Namespace).UpdateScale(ctx, name, scale, metav1.UpdateOptions{})
	return err
}

// wakeFirstTenant wakes the targets of the first tenant, which are created at zero.
func wakeFirstTenant(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	namespace := w.tenants[0].namespace
	var errs []error
	for _, name := range serviceNames {
		errs = append(errs, w.wake(ctx, namespace, name))
	}
	return "wake all ElastiServices of " + namespace, errors.Join(errs...)
}

// putSecondTenantToSleep puts the targets of the second tenant to sleep, which are
// created with a replica.
func putSecondTenantToSleep(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	namespace := w.tenants[1].namespace
	var errs []error
	for _, name := range serviceNames {
		errs = append(errs, w.requestSleep(ctx, types.NamespacedName{Namespace: namespace, Name: targetOf[name]}, name))
	}
	return "put the targets of all ElastiServices of " + namespace + " to sleep", errors.Join(errs...)
}

func wake(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return fmt.Sprintf("wake ElastiService %s/%s", namespace, name), w.wake(ctx, namespace, name)
}

func (w *testbed) wake(ctx context.Context, namespace, name string) error {
	target, err := w.targetOf(ctx, namespace, name)
	if err != nil {
		return err
	}
	_, err = w.elastiServices(namespace).Wake(ctx, name, &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err == nil && !w.sleepMayBeRequested(ctx, target) {
		w.wakes[target] = true
	}
	return err
}

// sleepMayBeRequested reports whether an ElastiService of a target requests sleep, which
// a wake of another does not take back.
func (w *testbed) sleepMayBeRequested(ctx context.Context, target types.NamespacedName) bool {
	list, err := w.elastiServices(target.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return true
	}
	for i := range list.Items {
		if list.Items[i].Spec.ScaleTargetRef.Name == target.Name && list.Items[i].Status.SleepRequestedTime != nil {
			return true
		}
	}
	return false
}

func scaleByHand(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name, replicas := w.anyTenant(random).namespace, anyOf(random, targetNames), int32(random.IntN(3))
	w.touch(deployment, namespace, name)
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := w.control.Kubernetes.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	if err == nil {
		w.scaledByHand(namespace, name, replicas)
	}
	return fmt.Sprintf("scale Deployment %s/%s to %d by hand", namespace, name, replicas), err
}

func deleteDeployment(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, targetNames)
	w.touch(deployment, namespace, name)
	w.scaledByHand(namespace, name, 1)
	return fmt.Sprintf("delete Deployment %s/%s", namespace, name),
		w.control.Kubernetes.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)})
}

func createDeployment(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name, replicas := w.anyTenant(random).namespace, anyOf(random, targetNames), int32(random.IntN(2))
	return fmt.Sprintf("create Deployment %s/%s with %d replicas", namespace, name, replicas), w.createDeployment(ctx, namespace, name, replicas)
}

func deleteService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	w.touch(service, namespace, name)
	return fmt.Sprintf("delete Service %s/%s", namespace, name), w.control.Kubernetes.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

func createService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	return fmt.Sprintf("create Service %s/%s", namespace, name), w.createService(ctx, namespace, name)
}

// editService changes a field of the Service that concerns resolvers, or restores it.
func editService(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	namespace, name := w.anyTenant(random).namespace, anyOf(random, serviceNames)
	edits := []struct {
		what string
		edit func(*corev1.ServiceSpec)
	}{
		{"a second port", func(spec *corev1.ServiceSpec) {
			spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 81}}
		}},
		{"one other port", func(spec *corev1.ServiceSpec) { spec.Ports = []corev1.ServicePort{{Name: "web", Port: 8080}} }},
		{"only UDP", func(spec *corev1.ServiceSpec) {
			spec.Ports = []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}
		}},
		{"no selector", func(spec *corev1.ServiceSpec) { spec.Selector = nil }},
		{"another selector", func(spec *corev1.ServiceSpec) { spec.Selector = map[string]string{appLabel: "nothing"} }},
		{"an external name", func(spec *corev1.ServiceSpec) {
			*spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Selector: spec.Selector, Ports: spec.Ports}
		}},
		{"what it had", restored(name)}, {"what it had", restored(name)}, {"what it had", restored(name)},
	}
	chosen := edits[random.IntN(len(edits))]
	w.touch(service, namespace, name)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		services := w.control.Kubernetes.CoreV1().Services(namespace)
		object, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		chosen.edit(&object.Spec)
		_, err = services.Update(ctx, object, metav1.UpdateOptions{})
		return err
	})
	return fmt.Sprintf("give Service %s/%s %s", namespace, name, chosen.what), err
}

func restored(name string) func(*corev1.ServiceSpec) {
	return func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalName = corev1.ServiceTypeClusterIP, ""
		spec.Selector, spec.Ports = map[string]string{appLabel: targetOf[name]}, []corev1.ServicePort{{Name: "http", Port: 80}}
	}
}
