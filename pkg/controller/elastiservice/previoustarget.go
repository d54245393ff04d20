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
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// reconcilePreviousTargets is the phase previous targets. It restores the targets that
// are recorded and that the ElastiService does not name any more. Where that fails,
// objects that were made for another ElastiService are not taken over: they lead the
// traffic of the Service to that target, and are the record of it.
func (c *Controller) reconcilePreviousTargets(ctx context.Context, p *pass) {
	if !p.managed() || p.leavesPrevious {
		return
	}
	err := c.restorePreviousTargets(ctx, p)
	p.result.failed(err)
	p.previousAsleep = err != nil
	p.heldByOther = p.previousAsleep && madeForOther(p)
	if p.heldByOther {
		p.result.failed(c.followResolvers(ctx, p))
		status := &p.elastiService.Status
		p.result.mode, p.result.ports, p.result.privateService = p.observedMode(), status.ProxyPorts, status.PrivateService
		p.result.managedTarget = resources.ManagedTargetInStatus(status)
	}
}

// madeForOther reports whether the private Service or a resolver slice of the public
// Service was made for another ElastiService, which had the Service before.
func madeForOther(p *pass) bool {
	var made []*metav1.ObjectMeta
	if p.private != nil {
		made = append(made, &p.private.ObjectMeta)
	}
	for _, slice := range p.ownSlices {
		made = append(made, &slice.ObjectMeta)
	}
	return slices.ContainsFunc(made, func(meta *metav1.ObjectMeta) bool {
		owner := resources.OwnerOf(meta)
		return len(owner) > 0 && !slices.Contains(owner, p.key())
	})
}

// restorePreviousTargets wakes the targets, and resumes the autoscalers, that the
// ElastiService named before and no ElastiService names now.
func (c *Controller) restorePreviousTargets(ctx context.Context, p *pass) error {
	current := restorationOf(p.elastiService)
	var problems []error
	for _, previous := range c.previousTargets(p) {
		previous.managed = c.autoscalerIsManagedByOthers(p.key(), previous)
		switch {
		case !c.sameTarget(previous.target, current.target) && !c.heldByOthers(p.key(), previous.target):
			if state, err := c.restoreTarget(ctx, previous); err != nil && mayBeAsleep(state, false) {
				problems = append(problems, &notRestoredError{previous.target, err})
			} else {
				problems = append(problems, err)
			}
		case previous.autoscaler != current.autoscaler:
			problems = append(problems, c.releaseAutoscaler(ctx, previous))
		}
	}
	return errors.Join(problems...)
}

// previousRestorations returns what it takes to wake the targets, and to resume the
// autoscalers, that the ElastiService named before and no ElastiService names now.
func (c *Controller) previousRestorations(p *pass) []restoration {
	current := restorationOf(p.elastiService)
	return slices.DeleteFunc(c.previousTargets(p), func(previous restoration) bool {
		return !c.sameTarget(previous.target, current.target) && c.heldByOthers(p.key(), previous.target)
	})
}

// previousTargets returns what it takes to wake the targets, and to resume the
// autoscalers, that the ElastiService named before.
func (c *Controller) previousTargets(p *pass) []restoration {
	current := restorationOf(p.elastiService)
	return slices.DeleteFunc(recordedRestorations(p, v1alpha1.ReferenceTo(p.elastiService)), current.sameAs)
}

// currentRestorations returns what it takes to wake the target that the ElastiService
// names, if its Service has resolvers for it.
func (c *Controller) currentRestorations(p *pass) []restoration {
	current := restorationOf(p.elastiService)
	if p.conflicting != nil && (!c.isRecorded(p) || c.heldByOthers(p.key(), current.target)) {
		return nil
	}
	return []restoration{current}
}

// isRecorded reports whether the target that the ElastiService names is recorded.
func (c *Controller) isRecorded(p *pass) bool {
	current := restorationOf(p.elastiService)
	return slices.ContainsFunc(recordedRestorations(p, nil), func(recorded restoration) bool { return c.sameTarget(recorded.target, current.target) })
}

// recordedRestorations returns what it takes to wake the targets that are recorded for
// the ElastiService of a pass, each once. regarding is what Events are about.
func recordedRestorations(p *pass, regarding *corev1.ObjectReference) (found []restoration) {
	for _, managed := range recordedTargets(p) {
		recorded := restorationFrom(p.elastiService.Namespace, managed, regarding)
		if !slices.ContainsFunc(found, recorded.sameAs) {
			found = append(found, recorded)
		}
	}
	return found
}

// recordedTarget returns the target that is recorded for the ElastiService of a pass,
// nil when none is.
func recordedTarget(p *pass) *resources.ManagedTarget {
	for _, managed := range recordedTargets(p) {
		return managed
	}
	return nil
}

// recordedTargets returns the targets that are recorded for the ElastiService of a
// pass. Its status, its private Services and its resolver slices record them, so that
// the loss of the storage, or an edit of one object, together with a change of the
// target does not leave a target asleep that nothing names. What a client has edited
// has lost its signature, and records nothing.
func recordedTargets(p *pass) (found []*resources.ManagedTarget) {
	if managed := resources.ManagedTargetInStatus(&p.elastiService.Status); managed != nil {
		found = append(found, managed)
	}
	made := make([]*metav1.ObjectMeta, 0, len(p.ownServices)+len(p.ownSlices)+1)
	for _, private := range p.ownServices {
		made = append(made, &private.ObjectMeta)
	}
	if p.private != nil && p.conflicting == nil {
		// Made for the ElastiService that had the Service before, it is about to be
		// written over.
		made = append(made, &p.private.ObjectMeta)
	}
	for _, slice := range p.ownSlices {
		made = append(made, &slice.ObjectMeta)
	}
	for _, meta := range made {
		if managed := resources.ManagedTargetIn(meta); managed != nil {
			found = append(found, managed)
		}
	}
	return found
}

// heldByOthers reports whether resolvers stand in for a target at zero through
// another ElastiService than that with the key, one that stays.
func (c *Controller) heldByOthers(key types.NamespacedName, scaleTarget scaling.Target) bool {
	targetKey := c.targetKeyOf(scaleTarget)
	others := indexed[*v1alpha1.ElastiService](c.elastiServices.in(targetKey.Namespace), byTarget, scaleTarget.NamespacedName())
	return slices.ContainsFunc(others, func(other *v1alpha1.ElastiService) bool {
		if resources.KeyOf(other) == key || c.targetKeys.Of(other) != targetKey || !other.DeletionTimestamp.IsZero() || !c.ownsService(other) {
			return false
		}
		object, ok := c.services.in(other.Namespace).Get(other.Namespace, other.Spec.Service)
		return ok && resources.Unsupported(object.(*corev1.Service)) == ""
	})
}

// sameTarget reports whether two targets are one, however they name its kind.
func (c *Controller) sameTarget(one, other scaling.Target) bool {
	return one == other || c.targetKeyOf(one) == c.targetKeyOf(other)
}

// targetKeyOf returns the identity of a target.
func (c *Controller) targetKeyOf(scaleTarget scaling.Target) resources.TargetKey {
	return c.targetKeys.OfRef(scaleTarget.Namespace, &v1alpha1.ScaleTargetRef{APIVersion: scaleTarget.APIVersion, Kind: scaleTarget.Kind, Name: scaleTarget.Name})
}

// servedByResolvers returns a pass that observes the Service which the resolvers stand in
// for. When that is the one which the ElastiService named before, and which is still
// there, it reports true: its clients wait at the resolvers.
func (c *Controller) servedByResolvers(p *pass) (served *pass, moved bool) {
	for _, slice := range p.ownSlices {
		public := slice.service()
		if public.Name == p.elastiService.Spec.Service {
			continue
		}
		previous := *p
		if c.observeService(&previous, public); previous.service != nil {
			return &previous, true
		}
	}
	return p, false
}
