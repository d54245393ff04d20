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
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// ScaleREST is the scale subresource: the scale of the target, under the name
// of the ElastiService. Scaling to 0 requests sleep from the controller, scaling
// from 0 wakes the target, and everything else is applied to the target at once,
// so that a HorizontalPodAutoscaler can scale an ElastiService.
type ScaleREST struct {
	targets *targets
}

var (
	_ rest.Patcher                  = &ScaleREST{}
	_ rest.GroupVersionKindProvider = &ScaleREST{}
	_ rest.TableConvertor           = &ScaleREST{}
)

// New returns an empty Scale.
func (*ScaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: the store belongs to REST.
func (*ScaleREST) Destroy() {}

// GroupVersionKind returns autoscaling/v1 Scale, whatever the version of the
// ElastiService is.
func (*ScaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// Get returns the scale of the target. From a request for sleep until the target
// sleeps, the desired replicas are 0.
func (r *ScaleREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	elastiService, err := r.targets.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.scaleOf(ctx, elastiService)
}

// Update scales the target. It fails with a conflict when the scale that it is
// based on is not the current one; a scale without a resource version is
// always accepted.
func (r *ScaleREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	elastiService, err := r.targets.get(ctx, name)
	if err != nil {
		return nil, false, err
	}
	current, err := r.scaleOf(ctx, elastiService)
	if err != nil {
		return nil, false, err
	}
	desired, err := desiredScale(ctx, objInfo, current)
	if err != nil {
		return nil, false, err
	}
	if updateValidation != nil {
		if err := updateValidation(ctx, desired.DeepCopyObject(), current.DeepCopyObject()); err != nil {
			return nil, false, err
		}
	}
	var requestedDryRun []string
	if options != nil {
		requestedDryRun = options.DryRun
	}
	if desired.Spec.Replicas == 0 {
		scale, err := r.sleep(ctx, elastiService, current, requestedDryRun)
		return scale, false, err
	}
	scale, err := r.run(ctx, elastiService, current, desired.Spec.Replicas, requestedDryRun)
	return scale, false, err
}

// sleep requests that the target is put to sleep. Only the controller can do that
// without losing requests, and it runs on one replica of the server only: so the
// request is part of the status, where the controller sees it.
func (r *ScaleREST) sleep(ctx context.Context, elastiService *elasti.ElastiService, current *autoscalingv1.Scale, requestedDryRun []string) (*autoscalingv1.Scale, error) {
	overrides := elastiService.Status.SleepRequestedBy == v1alpha1.CallerServer && callerOf(ctx) != v1alpha1.CallerServer
	if current.Spec.Replicas == 0 && !overrides {
		// The target sleeps, or sleep is requested already.
		return current, nil
	}
	if err := r.targets.requestSleep(ctx, elastiService.Name, metav1.Now(), requestedDryRun); err != nil {
		return nil, err
	}
	asleep := current.DeepCopy()
	asleep.Spec.Replicas = 0
	return asleep, nil
}

// run scales the target to that many replicas, at least 1. Scaling up is a wake,
// which resumes the autoscaler.
func (r *ScaleREST) run(ctx context.Context, elastiService *elasti.ElastiService, current *autoscalingv1.Scale, replicas int32, requestedDryRun []string) (*autoscalingv1.Scale, error) {
	isDryRun := dryrun.IsDryRun(requestedDryRun)
	scaled := current.DeepCopy()
	if replicas < current.Spec.Replicas {
		lowered, err := r.targets.scaler.Scale(ctx, targetOf(elastiService), replicas, isDryRun)
		if err != nil {
			return nil, scalingError(elastiService, err)
		}
		scaled.ResourceVersion, scaled.Spec, scaled.Status = lowered.ResourceVersion, lowered.Spec, lowered.Status
		return scaled, nil
	}
	result, err := r.targets.wakeForUse(ctx, elastiService, replicas, "scaled by a user or an autoscaler", isDryRun)
	if err != nil {
		return nil, scalingError(elastiService, err)
	}
	scaled.Spec.Replicas = result.Replicas
	if isDryRun || !result.Scaled {
		return scaled, nil
	}
	// Read again for the resource version, which the next update is based on.
	after, err := r.targets.scaler.Get(ctx, targetOf(elastiService))
	if err != nil {
		return nil, scalingError(elastiService, err)
	}
	scaled.ResourceVersion, scaled.Spec, scaled.Status = after.ResourceVersion, after.Spec, after.Status
	return scaled, nil
}

// scaleOf returns the scale of the target under the name of the ElastiService.
// The resource version is the target's: it changes with the content of the scale.
func (r *ScaleREST) scaleOf(ctx context.Context, elastiService *elasti.ElastiService) (*autoscalingv1.Scale, error) {
	scale, err := r.targets.scaler.Get(ctx, targetOf(elastiService))
	if err != nil {
		return nil, scalingError(elastiService, err)
	}
	renamed := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              elastiService.Name,
			Namespace:         elastiService.Namespace,
			UID:               elastiService.UID,
			ResourceVersion:   scale.ResourceVersion,
			CreationTimestamp: elastiService.CreationTimestamp,
		},
		Spec:   scale.Spec,
		Status: scale.Status,
	}
	if elastiService.Status.SleepRequestedTime != nil {
		renamed.Spec.Replicas = 0
	}
	return renamed, nil
}

// desiredScale returns the scale that the request sets.
func desiredScale(ctx context.Context, objInfo rest.UpdatedObjectInfo, current *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
	resource := elasti.Resource("elastiservices/scale")
	if preconditions := objInfo.Preconditions(); preconditions != nil && preconditions.UID != nil && *preconditions.UID != current.UID {
		return nil, apierrors.NewConflict(resource, current.Name, fmt.Errorf("the request expects the UID %s, but it is %s: read it again", *preconditions.UID, current.UID))
	}
	obj, err := objInfo.UpdatedObject(ctx, current.DeepCopy())
	if err != nil {
		return nil, err
	}
	desired, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the scale subresource takes a Scale, got %T", obj))
	}
	if desired.Name != "" && desired.Name != current.Name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is for %q: make them equal", desired.Name, current.Name))
	}
	if desired.ResourceVersion != "" && desired.ResourceVersion != current.ResourceVersion {
		return nil, apierrors.NewConflict(resource, current.Name, fmt.Errorf("the scale has changed since it was read: read it again"))
	}
	if errs := validation.ValidateScale(desired); len(errs) > 0 {
		return nil, apierrors.NewInvalid(autoscalingv1.SchemeGroupVersion.WithKind("Scale").GroupKind(), current.Name, errs)
	}
	return desired, nil
}

// ConvertToTable renders the scale with the columns that every kind has.
func (*ScaleREST) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	return rest.NewDefaultTableConvertor(elasti.Resource("elastiservices/scale")).ConvertToTable(ctx, object, tableOptions)
}
