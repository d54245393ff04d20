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
	"errors"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// restorePreviousTargets wakes the targets, and resumes the autoscalers, that the
// ElastiService named before and no ElastiService names now.
func (c *Controller) restorePreviousTargets(ctx context.Context, p *pass) error {
	current := resources.ManagedTargetOf(p.elastiService)
	var problems []error
	for _, service := range p.ownServices {
		previous := resources.ManagedTarget{}
		if err := json.Unmarshal([]byte(service.Annotations[v1alpha1.AnnotationTarget]), &previous); err != nil {
			// It was not made by a server of this installation: what it says does
			// not count, and it is written over.
			continue
		}
		if previous.Target == current.Target && target.AutoscalerOf(previous.Autoscaler) == target.AutoscalerOf(current.Autoscaler) {
			continue
		}
		scaleTarget := scaling.Target{Namespace: p.elastiService.Namespace, APIVersion: previous.Target.APIVersion, Kind: previous.Target.Kind, Name: previous.Target.Name}
		if previous.Target == current.Target || c.managedByOthers(ctx, p.key(), scaleTarget) {
			if target.AutoscalerOf(previous.Autoscaler) != target.AutoscalerOf(current.Autoscaler) {
				problems = append(problems, ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, target.AutoscalerOf(previous.Autoscaler))))
			}
			continue
		}
		_, err := c.restoreTarget(ctx, restoration{
			target:      scaleTarget,
			autoscaler:  target.AutoscalerOf(previous.Autoscaler),
			minReplicas: previous.MinReplicas(),
			regarding:   referenceTo(p.elastiService),
		})
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// formerRestorations returns what it takes to wake the targets, and to resume the
// autoscalers, that the ElastiService named before and no ElastiService names now.
func (c *Controller) formerRestorations(ctx context.Context, p *pass) []restoration {
	current := restorationOf(p.elastiService)
	var former []restoration
	for _, private := range p.ownServices {
		before, err := restorationFrom(private, current.regarding)
		switch {
		case err != nil:
			// It was not made by a server of this installation: what it says does
			// not count.
		case before.target == current.target && before.autoscaler == current.autoscaler:
		case before.target != current.target && c.managedByOthers(ctx, p.key(), before.target):
		default:
			former = append(former, before)
		}
	}
	return former
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
