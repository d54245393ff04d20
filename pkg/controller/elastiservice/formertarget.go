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

// ensurePrivate makes the private Service, after restoring a target that it
// remembers and that the ElastiService does not name any more.
func (c *Controller) ensurePrivate(ctx context.Context, v *view) error {
	desired, err := resources.DesiredPrivateService(v.elastiService, v.service)
	if err != nil {
		return err
	}
	restoreErr := c.restoreFormerTargets(ctx, v)
	if restoreErr != nil && v.private != nil {
		// Remember it until it could be restored.
		if former, ok := v.private.Annotations[v1alpha1.AnnotationTarget]; ok {
			desired.Annotations[v1alpha1.AnnotationTarget] = former
		}
	}
	return errors.Join(restoreErr, c.ensurePrivateService(ctx, desired, v.private))
}

// restoreFormerTargets wakes the targets, and resumes the autoscalers, that
// the ElastiService named before and nobody names now.
func (c *Controller) restoreFormerTargets(ctx context.Context, v *view) error {
	current := resources.ManagedTargetOf(v.elastiService)
	var problems []error
	for _, service := range v.ownServices {
		former := resources.ManagedTarget{}
		if err := json.Unmarshal([]byte(service.Annotations[v1alpha1.AnnotationTarget]), &former); err != nil {
			// Edited by somebody: there is nothing to go by, and it is put back.
			continue
		}
		if former.Target == current.Target && target.AutoscalerOf(former.Autoscaler) == target.AutoscalerOf(current.Autoscaler) {
			continue
		}
		scaleTarget := scaling.Target{Namespace: v.elastiService.Namespace, APIVersion: former.Target.APIVersion, Kind: former.Target.Kind, Name: former.Target.Name}
		if former.Target == current.Target || c.managedByOthers(ctx, resources.KeyOf(v.elastiService), scaleTarget) {
			if target.AutoscalerOf(former.Autoscaler) != target.AutoscalerOf(current.Autoscaler) {
				problems = append(problems, ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, target.AutoscalerOf(former.Autoscaler))))
			}
			continue
		}
		_, err := c.restoreTarget(ctx, restoration{
			target:      scaleTarget,
			autoscaler:  target.AutoscalerOf(former.Autoscaler),
			minReplicas: former.MinReplicas(),
			regarding:   referenceTo(v.elastiService),
		})
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
