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
	"cmp"
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// reconcilePrivateService is the phase private Service. It makes the private
// Service.
func (c *Controller) reconcilePrivateService(ctx context.Context, p *pass) {
	if !p.mayManage() {
		return
	}
	p.result.privateService = resources.PrivateServiceName(p.service.Name)
	p.result.managedTarget = resources.ManagedTargetOf(p.elastiService)
	if p.previousAsleep {
		// The record of the previous target stays until that could be restored.
		p.result.managedTarget = cmp.Or(recordedTarget(p), p.result.managedTarget)
	}
	desired := resources.DesiredPrivateService(p.elastiService, p.service, p.result.managedTarget)
	err := c.ensurePrivateService(ctx, desired, p.private)
	p.unreachable = err != nil
	p.result.failed(err)
	if err != nil && (p.private == nil || !resources.IsHeadless(p.private) || !maps.Equal(p.private.Spec.Selector, desired.Spec.Selector)) {
		// Resolvers connect to what the slices of this Service list. Those of one that is not
		// there, is an ExternalName, or has no selector, list what users write.
		p.result.privateService = ""
	}
}

// ensurePrivateService makes the private Service as desired. observed is that in the cache,
// or nil. A Service without the marks of a private one is not touched: the error is a
// *NameTakenError then. A Service with these marks that was not made by the controller is
// taken over, and nothing in it is trusted.
func (c *Controller) ensurePrivateService(ctx context.Context, desired, observed *corev1.Service) error {
	if observed != nil && resources.PrivateServiceMatches(observed, desired) {
		return nil
	}
	services := c.host.CoreV1().Services(desired.Namespace)
	if observed == nil {
		created, err := services.Create(ctx, desired, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
		if err == nil {
			return c.signPrivateService(ctx, created)
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
	made := isPrivateService(c.options.Signer, &current.ObjectMeta)
	switch {
	case !made && !resources.IsMarked(&current.ObjectMeta, v1alpha1.RolePrivate):
		return &resources.NameTakenError{Kind: "Service", Name: desired.Name}
	case made && resources.PrivateServiceMatches(current, desired):
		return nil
	case resources.PrimaryFamilyDiffers(current, desired), !resources.IsHeadless(current):
		return c.replacePrivateService(ctx, desired, current)
	}
	updated := current.DeepCopy()
	for key, value := range desired.Labels {
		metav1.SetMetaDataLabel(&updated.ObjectMeta, key, value)
	}
	for key, value := range desired.Annotations {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, key, value)
	}
	if !made {
		updated.Spec = corev1.ServiceSpec{
			ClusterIP: current.Spec.ClusterIP, ClusterIPs: current.Spec.ClusterIPs,
			IPFamilies: current.Spec.IPFamilies, IPFamilyPolicy: current.Spec.IPFamilyPolicy,
		}
	}
	updated.Spec.Selector = desired.Spec.Selector
	updated.Spec.Ports = desired.Spec.Ports
	updated.Spec.PublishNotReadyAddresses = desired.Spec.PublishNotReadyAddresses
	if len(desired.Spec.IPFamilies) > 0 {
		updated.Spec.IPFamilies, updated.Spec.IPFamilyPolicy = desired.Spec.IPFamilies, desired.Spec.IPFamilyPolicy
	}
	c.options.Signer.Sign(&updated.ObjectMeta)
	if _, err := services.Update(ctx, updated, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("updating private Service %q: %w", desired.Name, err)
	}
	return nil
}

// signPrivateService signs a private Service that was created. Its signature is
// for its UID, which it has only now.
func (c *Controller) signPrivateService(ctx context.Context, created *corev1.Service) error {
	c.options.Signer.Sign(&created.ObjectMeta)
	if _, err := c.host.CoreV1().Services(created.Namespace).Update(ctx, created, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("signing private Service %q: %w", created.Name, err)
	}
	return nil
}

// replacePrivateService deletes a private Service and makes it again, for what
// cannot be changed of it.
func (c *Controller) replacePrivateService(ctx context.Context, desired, current *corev1.Service) error {
	services := c.host.CoreV1().Services(desired.Namespace)
	err := services.Delete(ctx, current.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(current.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting private Service %q, which cannot be changed into one without an address, or to other IP families: %w", desired.Name, err)
	}
	created, err := services.Create(ctx, desired, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
	if err != nil {
		return fmt.Errorf("creating private Service %q again: %w", desired.Name, err)
	}
	return c.signPrivateService(ctx, created)
}
