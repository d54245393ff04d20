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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
)

// targetFindings returns what of the target of an ElastiService is incompatible with
// scale to zero. It must be called with a target that is known to exist.
func targetFindings(elastiService *v1alpha1.ElastiService, object *target.Object) []compatibility.Finding {
	ref := elastiService.Spec.ScaleTargetRef
	return compatibility.OfTarget(object.Resource, ref.Kind, ref.Name, elastiService.Annotations, object.Traits)
}

// forbiddenBecause returns why the target of an ElastiService must not be scaled to
// zero. It is empty when it may. The object is nil when it is not known.
func forbiddenBecause(elastiService *v1alpha1.ElastiService, object *target.Object) string {
	if object == nil {
		return ""
	}
	if finding := compatibility.KeepsAwake(targetFindings(elastiService, object)); finding != nil {
		return finding.Message
	}
	return ""
}

// setCompatibility reports which properties of the Service, the target and the
// autoscaler are incompatible with scale to zero. A condition about an object that
// does not exist is removed; that about one that is not known for now stays as
// it is.
func setCompatibility(p *pass, status *v1alpha1.ElastiServiceStatus, now metav1.Time) {
	set := func(conditionType string, exists bool, findings func() []compatibility.Finding) {
		if !exists {
			meta.RemoveStatusCondition(&status.Conditions, conditionType)
			return
		}
		condition := compatibility.ConditionOf(conditionType, findings())
		condition.Message = bounded(condition.Message)
		condition.ObservedGeneration = p.elastiService.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	set(v1alpha1.ConditionServiceCompatible, p.service != nil, func() []compatibility.Finding {
		proxy := p.elastiService.Spec.Proxy
		return compatibility.OfService(p.service, proxy != nil && proxy.Policy == v1alpha1.ProxyAlways)
	})
	if !p.target.Pending {
		set(v1alpha1.ConditionTargetCompatible, p.target.Object != nil, func() []compatibility.Finding { return targetFindings(p.elastiService, p.target.Object) })
	}
	if !p.autoscaler.Pending {
		set(v1alpha1.ConditionAutoscalerCompatible, p.autoscaler.Autoscaler != nil, func() []compatibility.Finding { return p.autoscaler.Autoscaler.Findings })
	}
}
