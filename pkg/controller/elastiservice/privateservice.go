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

package elastiservice

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// managedTarget is what a private Service remembers of its ElastiService: the
// target and autoscaler that are to be restored when it names others.
type managedTarget struct {
	Target            v1alpha1.ScaleTargetRef  `json:"target"`
	Autoscaler        *v1alpha1.AutoscalerSpec `json:"autoscaler,omitempty"`
	MinTargetReplicas *int32                   `json:"minTargetReplicas,omitempty"`
}

func managedTargetOf(elastiService *v1alpha1.ElastiService) managedTarget {
	return managedTarget{
		Target:            elastiService.Spec.ScaleTargetRef,
		Autoscaler:        elastiService.Spec.Autoscaler,
		MinTargetReplicas: elastiService.Spec.MinTargetReplicas,
	}
}

func (m managedTarget) minReplicas() int32 {
	return ptr.Deref(m.MinTargetReplicas, v1alpha1.DefaultMinTargetReplicas)
}

// desiredPrivateService is the headless copy of a public Service's selector,
// ports and IP families, and of nothing else: its EndpointSlices list the
// target's pods.
func desiredPrivateService(elastiService *v1alpha1.ElastiService, public *corev1.Service) (*corev1.Service, error) {
	target, err := json.Marshal(managedTargetOf(elastiService))
	if err != nil {
		return nil, fmt.Errorf("encoding the target of ElastiService %s/%s: %w", elastiService.Namespace, elastiService.Name, err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   public.Namespace,
			Name:        PrivateServiceName(public.Name),
			Labels:      map[string]string{v1alpha1.LabelRole: v1alpha1.RolePrivate, v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{v1alpha1.AnnotationOwner: elastiService.Name, v1alpha1.AnnotationTarget: string(target)},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP:      corev1.ClusterIPNone,
			Selector:       public.Spec.Selector,
			IPFamilies:     public.Spec.IPFamilies,
			IPFamilyPolicy: privateFamilyPolicy(public),
		},
	}
	for _, port := range public.Spec.Ports {
		port.NodePort = 0
		service.Spec.Ports = append(service.Spec.Ports, port)
	}
	return service, nil
}

// privateFamilyPolicy asks for the families that the public Service has, neither
// more nor fewer. A preference would be decided again, and maybe otherwise, when
// the families of the cluster have changed in between.
func privateFamilyPolicy(public *corev1.Service) *corev1.IPFamilyPolicy {
	switch len(public.Spec.IPFamilies) {
	case 0:
		return nil
	case 1:
		return ptr.To(corev1.IPFamilyPolicySingleStack)
	default:
		return ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
}

// ensurePrivateService makes the private Service as desired. observed is the
// one that is known, or nil. A Service of somebody else is not touched: the
// error is a *nameTakenError then.
func (c *Controller) ensurePrivateService(ctx context.Context, desired, observed *corev1.Service) error {
	if observed != nil && privateServiceMatches(observed, desired) {
		return nil
	}
	services := c.host.CoreV1().Services(desired.Namespace)
	if observed == nil {
		_, err := services.Create(ctx, desired, metav1.CreateOptions{FieldManager: fieldManager})
		if err == nil {
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating private Service %q: %w", desired.Name, err)
		}
	}
	// What is kept of Services is not enough to write one.
	current, err := services.Get(ctx, desired.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading private Service %q: %w", desired.Name, err)
	}
	if !isOurs(&current.ObjectMeta, v1alpha1.RolePrivate) {
		return &nameTakenError{kind: "Service", name: desired.Name}
	}
	if privateServiceMatches(current, desired) {
		return nil
	}
	if otherPrimaryFamily(current, desired) {
		return c.replacePrivateService(ctx, desired, current)
	}
	updated := current.DeepCopy()
	for key, value := range desired.Labels {
		metav1.SetMetaDataLabel(&updated.ObjectMeta, key, value)
	}
	for key, value := range desired.Annotations {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, key, value)
	}
	updated.Spec.Selector = desired.Spec.Selector
	updated.Spec.Ports = desired.Spec.Ports
	if len(desired.Spec.IPFamilies) > 0 {
		updated.Spec.IPFamilies, updated.Spec.IPFamilyPolicy = desired.Spec.IPFamilies, desired.Spec.IPFamilyPolicy
	}
	if _, err := services.Update(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("updating private Service %q: %w", desired.Name, err)
	}
	return nil
}

// otherPrimaryFamily tells whether the first family differs, which cannot be
// changed: the public Service was deleted and made again with another one.
func otherPrimaryFamily(current, desired *corev1.Service) bool {
	return len(current.Spec.IPFamilies) > 0 && len(desired.Spec.IPFamilies) > 0 && current.Spec.IPFamilies[0] != desired.Spec.IPFamilies[0]
}

// replacePrivateService deletes a private Service of ours and makes it again.
func (c *Controller) replacePrivateService(ctx context.Context, desired, current *corev1.Service) error {
	services := c.host.CoreV1().Services(desired.Namespace)
	err := services.Delete(ctx, current.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(current.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting private Service %q, whose first IP family cannot be changed: %w", desired.Name, err)
	}
	if _, err := services.Create(ctx, desired, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("creating private Service %q again: %w", desired.Name, err)
	}
	return nil
}

func privateServiceMatches(service, desired *corev1.Service) bool {
	return service.Labels[v1alpha1.LabelRole] == v1alpha1.RolePrivate &&
		service.Annotations[v1alpha1.AnnotationOwner] == desired.Annotations[v1alpha1.AnnotationOwner] &&
		service.Annotations[v1alpha1.AnnotationTarget] == desired.Annotations[v1alpha1.AnnotationTarget] &&
		equality.Semantic.DeepEqual(service.Spec.Selector, desired.Spec.Selector) &&
		equality.Semantic.DeepEqual(service.Spec.Ports, desired.Spec.Ports) &&
		(len(desired.Spec.IPFamilies) == 0 || slices.Equal(service.Spec.IPFamilies, desired.Spec.IPFamilies) &&
			ptr.Equal(service.Spec.IPFamilyPolicy, desired.Spec.IPFamilyPolicy))
}

// nameTakenError says that the name of an object that is needed belongs to an
// object of somebody else.
type nameTakenError struct{ kind, name string }

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("%s %q exists and does not belong to elasti-apiserver: delete or rename it", e.kind, e.name)
}
