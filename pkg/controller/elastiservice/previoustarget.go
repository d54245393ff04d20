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
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// restorePreviousTargets wakes the targets, and resumes the autoscalers, that the
// ElastiService named before and no ElastiService names now.
func (c *Controller) restorePreviousTargets(ctx context.Context, p *pass) error {
	current := restorationOf(p.elastiService)
	var problems []error
	for _, previous := range c.previousTargets(p) {
		previous.managed = c.autoscalerIsManagedByOthers(p.key(), previous)
		switch {
		case previous.target != current.target && !c.coveredByOthers(p.key(), previous.target):
			if state, err := c.restoreTarget(ctx, previous); err != nil && state == restoredNot {
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

// formerRestorations returns what it takes to wake the targets, and to resume the
// autoscalers, that the ElastiService named before and no ElastiService names now.
func (c *Controller) formerRestorations(p *pass) []restoration {
	current := restorationOf(p.elastiService)
	return slices.DeleteFunc(c.previousTargets(p), func(previous restoration) bool {
		return previous.target != current.target && c.coveredByOthers(p.key(), previous.target)
	})
}

// previousTargets returns what it takes to wake the targets, and to resume the
// autoscalers, that the ElastiService named before. Its private Services name them;
// one that is deleted or edited together with the change of the target does not, so
// what this process had managed counts too.
func (c *Controller) previousTargets(p *pass) (previous []restoration) {
	known := []restoration{restorationOf(p.elastiService)}
	add := func(named restoration) {
		if !slices.ContainsFunc(known, named.sameAs) {
			known, previous = append(known, named), append(previous, named)
		}
	}
	for _, private := range p.ownServices {
		// One that cannot be read was not made by a server of this installation: what
		// it says does not count, and it is written over.
		if named, err := restorationFrom(private, referenceTo(p.elastiService)); err == nil {
			add(named)
		}
	}
	if managed := p.state.managed; managed != nil {
		add(*managed)
	}
	return previous
}

// coveredByOthers reports whether resolvers stand in for a target at zero through
// another ElastiService than that with the key, one that stays.
func (c *Controller) coveredByOthers(key types.NamespacedName, scaleTarget scaling.Target) bool {
	targetKey := targetKeyOf(scaleTarget)
	others := indexed[*v1alpha1.ElastiService](c.elastiServices.in(targetKey.Namespace), byTarget, types.NamespacedName{Namespace: targetKey.Namespace, Name: targetKey.Name})
	return slices.ContainsFunc(others, func(other *v1alpha1.ElastiService) bool {
		if resources.KeyOf(other) == key || resources.TargetKeyOf(other) != targetKey || !other.DeletionTimestamp.IsZero() || !c.ownsService(other) {
			return false
		}
		object, ok := c.services.in(other.Namespace).Get(other.Namespace, other.Spec.Service)
		return ok && resources.Unsupported(object.(*corev1.Service)) == ""
	})
}

// targetKeyOf returns the identity of a target.
func targetKeyOf(scaleTarget scaling.Target) resources.TargetKey {
	named := v1alpha1.ElastiService{}
	named.Namespace = scaleTarget.Namespace
	named.Spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: scaleTarget.APIVersion, Kind: scaleTarget.Kind, Name: scaleTarget.Name}
	return resources.TargetKeyOf(&named)
}

// coveredService returns a pass that observes the Service which the resolvers stand in
// for. When that is the one which the ElastiService named before, and which is still
// there, it reports true: its clients wait at the resolvers.
func (c *Controller) coveredService(p *pass) (covered *pass, moved bool) {
	for _, slice := range p.ownSlices {
		public := slice.service()
		if public.Name == p.elastiService.Spec.Service {
			continue
		}
		former := *p
		if c.observeService(&former, public); former.service != nil {
			return &former, true
		}
	}
	return p, false
}
