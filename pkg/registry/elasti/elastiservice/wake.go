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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// Reasons of the Events that a wake request leaves on its ElastiService. The
// first two are KubeElasti's, so that alerts on them keep working.
const (
	// ReasonSuccessToScale: the target was scaled from zero.
	ReasonSuccessToScale = "SuccessToScale"
	// ReasonFailedToScale: the target could not be scaled.
	ReasonFailedToScale = "FailedToScale"
	// ReasonAutoscalerNotResumed: the target was scaled, but its autoscaler
	// could not be told to go on.
	ReasonAutoscalerNotResumed = "AutoscalerNotResumed"
)

// Waker scales a target to at least minimum replicas and lets its autoscaler
// go on. Safe for concurrent use.
type Waker interface {
	Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, dryRun bool) (scaling.Result, error)
}

// EventRecorder records an Event about an object without waiting for it to be written.
type EventRecorder interface {
	Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any)
}

// WakeREST is the wake subresource: creating a WakeRequest wakes the target.
// Any replica of the server can serve it at any time, and doing it twice is
// the same as doing it once.
type WakeREST struct {
	elastiServices *genericregistry.Store
	waker          Waker
	events         EventRecorder
}

var (
	_ rest.NamedCreater = &WakeREST{}
)

// New returns an empty WakeRequest.
func (*WakeREST) New() runtime.Object { return &elasti.WakeRequest{} }

// Destroy does nothing: the store belongs to REST.
func (*WakeREST) Destroy() {}

// Create wakes the target of the ElastiService called name. It answers as soon
// as the target's scale is set, with the request and what it did as status:
// a caller that may only create wake requests learns nothing else about the
// ElastiService.
func (r *WakeREST) Create(ctx context.Context, name string, obj runtime.Object, createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	request, ok := obj.(*elasti.WakeRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a wake takes a WakeRequest, got %T", obj))
	}
	request.Status = elasti.WakeRequestStatus{}
	if request.Name != "" && request.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the request is for %q: leave it out or make them equal", request.Name, name))
	}
	request.Name = name
	request.Namespace = genericapirequest.NamespaceValue(ctx)
	if errs := validation.ValidateWakeRequest(request); len(errs) > 0 {
		return nil, apierrors.NewInvalid(elasti.Kind("WakeRequest"), name, errs)
	}
	if createValidation != nil {
		if err := createValidation(ctx, request.DeepCopyObject()); err != nil {
			return nil, err
		}
	}

	elastiService, err := r.get(ctx, name)
	if err != nil {
		return nil, err
	}
	dryRun := options != nil && dryrun.IsDryRun(options.DryRun)
	result, err := r.waker.Wake(ctx, targetOf(elastiService), autoscalerOf(elastiService), wantedReplicas(elastiService, request), dryRun)
	if !dryRun {
		r.record(ctx, elastiService, request, result, err)
	}
	if err != nil {
		return nil, wakeError(elastiService, err)
	}

	request.CreationTimestamp = metav1.Now()
	request.Status = elasti.WakeRequestStatus{
		Replicas:      result.Replicas,
		ReadyReplicas: elastiService.Status.ReadyReplicas,
		Scaled:        result.Scaled,
		Mode:          elastiService.Status.Mode,
	}
	return request, nil
}

// get reads from the watch cache, so that waking does not wait for the
// storage. A cache that is behind does not know the newest objects yet: what
// is not found there is asked of the storage.
func (r *WakeREST) get(ctx context.Context, name string) (*elasti.ElastiService, error) {
	obj, err := r.elastiServices.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		obj, err = r.elastiServices.Get(ctx, name, &metav1.GetOptions{})
	}
	if err != nil {
		return nil, err
	}
	return obj.(*elasti.ElastiService), nil
}

// record leaves an Event about a wake that changed something or failed. A wake
// of a target that was awake already leaves none.
func (r *WakeREST) record(ctx context.Context, elastiService *elasti.ElastiService, request *elasti.WakeRequest, result scaling.Result, err error) {
	ref := elastiService.Spec.ScaleTargetRef
	regarding := referenceTo(elastiService)
	reason := request.Spec.Reason
	if reason == "" {
		reason = "no reason given"
	}
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "Waking a target failed", "elastiService", klog.KObj(elastiService), "targetKind", ref.Kind, "targetName", ref.Name)
		r.events.Eventf(regarding, nil, corev1.EventTypeWarning, ReasonFailedToScale, "Wake", "cannot wake %s %s: %v", ref.Kind, ref.Name, err)
	case result.Scaled:
		r.events.Eventf(regarding, nil, corev1.EventTypeNormal, ReasonSuccessToScale, "Wake", "scaled %s %s to %d (%s, %d pending)", ref.Kind, ref.Name, result.Replicas, reason, request.Spec.Pending)
	}
	if result.AutoscalerError != nil {
		r.events.Eventf(regarding, nil, corev1.EventTypeWarning, ReasonAutoscalerNotResumed, "Wake", "%v", result.AutoscalerError)
	}
}

// wakeError gives a failed wake the status that says whose fault it is: a
// missing target is the user's to mend (404 would read as a missing
// ElastiService), a refusal is a matter of our own permissions, everything
// else may pass.
func wakeError(elastiService *elasti.ElastiService, err error) error {
	ref := elastiService.Spec.ScaleTargetRef
	switch {
	case apierrors.IsNotFound(err):
		return apierrors.NewConflict(elasti.Resource("elastiservices"), elastiService.Name,
			fmt.Errorf("its target %s %s %q does not exist: create it or correct spec.scaleTargetRef", ref.APIVersion, ref.Kind, ref.Name))
	case apierrors.IsForbidden(err):
		return apierrors.NewInternalError(fmt.Errorf("the elasti-apiserver may not scale %s %s %q, grant its service account get and update on the scale subresource: %w", ref.APIVersion, ref.Kind, ref.Name, err))
	default:
		return apierrors.NewInternalError(fmt.Errorf("scaling %s %s %q: %w", ref.APIVersion, ref.Kind, ref.Name, err))
	}
}

// referenceTo names the object in the version that users know: the internal
// version of the type would end up in the Event otherwise.
func referenceTo(elastiService *elasti.ElastiService) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion:      v1alpha1.SchemeGroupVersion.String(),
		Kind:            "ElastiService",
		Namespace:       elastiService.Namespace,
		Name:            elastiService.Name,
		UID:             elastiService.UID,
		ResourceVersion: elastiService.ResourceVersion,
	}
}

func targetOf(elastiService *elasti.ElastiService) scaling.Target {
	ref := elastiService.Spec.ScaleTargetRef
	return scaling.Target{Namespace: elastiService.Namespace, APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name}
}

func autoscalerOf(elastiService *elasti.ElastiService) scaling.Autoscaler {
	if elastiService.Spec.Autoscaler == nil {
		return scaling.Autoscaler{}
	}
	return scaling.Autoscaler{Type: string(elastiService.Spec.Autoscaler.Type), Name: elastiService.Spec.Autoscaler.Name}
}

func wantedReplicas(elastiService *elasti.ElastiService, request *elasti.WakeRequest) int32 {
	if request.Spec.Replicas != nil {
		return *request.Spec.Replicas
	}
	return *elastiService.Spec.MinTargetReplicas
}
