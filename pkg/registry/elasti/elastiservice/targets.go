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
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice/consistency"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// wakeTimeout ends a wake whose API calls hang. It is below the 34 s after
// which the generic server ends a request.
const wakeTimeout = 30 * time.Second

// cancelSleepTimeout ends the write that cancels a request for sleep when the
// storage hangs. The wake succeeds all the same.
const cancelSleepTimeout = 5 * time.Second

// Scaler reads and changes the scales of targets. It is safe for concurrent use.
type Scaler interface {
	// Wake scales a target to at least minimum replicas and resumes its autoscaler.
	Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, dryRun bool) (scaling.Result, error)
	// WakeFromZero does the same, faster when the target is scaled to zero.
	WakeFromZero(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (scaling.Result, error)
	// Get returns the scale of a target.
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
	// Scale sets the number of replicas of a target.
	Scale(ctx context.Context, target scaling.Target, replicas int32, dryRun bool) (*autoscalingv1.Scale, error)
}

// EventRecorder records an Event about an object without waiting for it to be written.
type EventRecorder interface {
	Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any)
}

// targets reads and scales targets for the subresources that do so.
type targets struct {
	elastiServices *genericregistry.Store
	statuses       *genericregistry.Store
	lastKnown      *LastKnown
	scaler         Scaler
	events         EventRecorder
	wakeRecorder   *WakeRecorder

	// sleepRequests tracks the requests for sleep that this server wrote, by
	// ElastiService, so that a later wake of its target sees and cancels them, and does
	// not wait for those of other targets.
	sleepRequests consistency.KeyTracker

	// wakes deduplicates concurrent wakes that are the same, and wakeMutex
	// serializes the wakes of a target.
	wakes     singleflight.Group
	wakeMutex keyedMutex
}

// getCached reads from the watch cache, so that waking does not wait for the
// storage. An object that the cache does not have may be newer than the cache, and
// is read from the storage. While neither can be read, the last known object is
// returned.
func (t *targets) getCached(ctx context.Context, name string) (*elasti.ElastiService, error) {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	obj, err := t.getWithSleepRequest(reading, name)
	if apierrors.IsNotFound(err) {
		obj, err = t.elastiServices.Get(reading, name, &metav1.GetOptions{})
	}
	if err == nil {
		return obj.(*elasti.ElastiService), nil
	}
	if apierrors.IsNotFound(err) {
		return nil, err
	}
	known, ok := t.lastKnown.get(keyInNamespaceOf(ctx, name))
	if !ok {
		return nil, unreadable(name, err)
	}
	klog.FromContext(ctx).Error(err, "Failed to read ElastiService, using the last known one", "elastiService", klog.KObj(known))
	return known, nil
}

// getWithSleepRequest reads from the watch cache, once that has the last request for sleep
// of the ElastiService that this server wrote.
func (t *targets) getWithSleepRequest(ctx context.Context, name string) (runtime.Object, error) {
	return readTracked(ctx, t.elastiServices, &t.sleepRequests, sleepRequestKey(ctx, name), func(resourceVersion string) (runtime.Object, error) {
		return t.elastiServices.Get(ctx, name, &metav1.GetOptions{ResourceVersion: resourceVersion})
	})
}

// sleepRequestKey returns the key of an ElastiService in the tracker of requests for sleep.
func sleepRequestKey(ctx context.Context, name string) string {
	return keyInNamespaceOf(ctx, name).String()
}

// keyInNamespaceOf returns the key of an object in the namespace of a request.
func keyInNamespaceOf(ctx context.Context, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: genericapirequest.NamespaceValue(ctx), Name: name}
}

// unreadable returns the error for an ElastiService that could not be read. A
// timeout is not an error of the client.
func unreadable(name string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return apierrors.NewTimeoutError(fmt.Sprintf("reading elastiservice %q: the storage does not respond, try again: %v", name, err), 1)
	}
	return err
}

// get reads from the storage.
func (t *targets) get(ctx context.Context, name string) (*elasti.ElastiService, error) {
	obj, err := t.elastiServices.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*elasti.ElastiService), nil
}

// wake scales the target to at least minimum replicas and records an Event when
// that changed something or failed. why goes into the Event. A dry run changes
// and records nothing.
//
// Callers that arrive while a wake of the same target runs share the next wake,
// not the running one: the running one may have read the scale before it was
// lowered, and the callers arrived after that.
func (t *targets) wake(ctx context.Context, elastiService *elasti.ElastiService, minimum int32, why string, dryRun bool) (scaling.Result, error) {
	target, autoscaler := targetOf(elastiService), autoscalerOf(elastiService)
	if dryRun {
		return t.scaler.Wake(ctx, target, autoscaler, minimum, true)
	}
	mutexKey := target.String()
	key := fmt.Sprintf("%s %v %d %s", mutexKey, autoscaler, minimum, elastiService.Name)
	shared := t.wakes.DoChan(key, func() (any, error) {
		// The others must not fail when the first caller disconnects.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wakeTimeout)
		defer cancel()
		unlock, err := t.wakeMutex.lock(ctx, mutexKey)
		if err != nil {
			return scaling.Result{}, err
		}
		defer unlock()
		t.wakes.Forget(key)
		var result scaling.Result
		if isAsleep(elastiService) {
			result, err = t.scaler.WakeFromZero(ctx, target, autoscaler, minimum)
		} else {
			result, err = t.scaler.Wake(ctx, target, autoscaler, minimum, false)
		}
		t.record(ctx, elastiService, why, result, err)
		return result, err
	})
	select {
	case <-ctx.Done():
		return scaling.Result{}, ctx.Err()
	case done := <-shared:
		return done.Val.(scaling.Result), done.Err
	}
}

// isAsleep reports whether the target is scaled to zero according to the status.
func isAsleep(elastiService *elasti.ElastiService) bool {
	return elastiService.Status.Mode == elasti.ModeProxy && elastiService.Status.Replicas == 0
}

// record records an Event about a wake that changed something or failed. A wake
// of a target that was awake already has none.
func (t *targets) record(ctx context.Context, elastiService *elasti.ElastiService, why string, result scaling.Result, err error) {
	ref := elastiService.Spec.ScaleTargetRef
	regarding := v1alpha1.ReferenceTo(elastiService)
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed to wake target", "elastiService", klog.KObj(elastiService), "targetKind", ref.Kind, "targetName", ref.Name)
		t.events.Eventf(regarding, nil, corev1.EventTypeWarning, v1alpha1.ReasonScaleFailed, "Wake", "cannot wake %s %s: %v", ref.Kind, ref.Name, err)
	case result.Scaled:
		if result.FromZero {
			t.wakeRecorder.record(elastiService, newWakeRecord(ctx, why))
		}
		t.events.Eventf(regarding, nil, corev1.EventTypeNormal, v1alpha1.ReasonWoken, "Wake", "scaled %s %s to %d (%s)", ref.Kind, ref.Name, result.Replicas, why)
	}
	if result.AutoscalerError != nil {
		t.events.Eventf(regarding, nil, corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, "Wake", "%v", result.AutoscalerError)
	}
}

// requestSleep sets the time at which sleep of the target was requested, and by which
// client. The controller acts on it, on whatever replica it runs. The time is not before
// the last wake that the status has, which another replica recorded: its clock may be ahead,
// and a request from before a wake does not count.
func (t *targets) requestSleep(ctx context.Context, name string, when metav1.Time, dryRun []string) error {
	return t.updateSleepRequest(ctx, name, dryRun, func(elastiService *elasti.ElastiService) {
		requested := when
		if woken := elastiService.Status.LastScaledUpTime; requested.Before(woken) {
			requested = *woken
		}
		elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = &requested, callerOf(ctx)
	})
}

// updateSleepRequest changes the request for sleep in the status of an ElastiService.
func (t *targets) updateSleepRequest(ctx context.Context, name string, dryRun []string, change func(*elasti.ElastiService)) error {
	request := func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		elastiService := stored.DeepCopyObject().(*elasti.ElastiService)
		change(elastiService)
		return elastiService, nil
	}
	updated, _, err := t.statuses.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, request),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	if err != nil {
		return err
	}
	t.sleepRequests.Observe(t.statuses.Storage.Versioner(), sleepRequestKey(ctx, name), updated)
	return nil
}

// wakeForUse wakes the target and cancels a request for sleep that was not carried
// out yet, also one of another ElastiService of the target. The target is scaled
// first: a storage that rejects writes does not stop a wake. It is scaled again
// afterwards, in case it was scaled to zero in between.
func (t *targets) wakeForUse(ctx context.Context, elastiService *elasti.ElastiService, minimum int32, why string, dryRun bool) (scaling.Result, error) {
	result, err := t.wake(ctx, elastiService, minimum, why, dryRun)
	if err != nil || dryRun {
		return result, err
	}
	requested := t.withSleepRequest(ctx, elastiService)
	if len(requested) == 0 {
		return result, nil
	}
	wake := newWakeRecord(ctx, why)
	for _, name := range requested {
		if err := t.cancelSleep(ctx, name, elastiService.Spec.ScaleTargetRef.Name, wake); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to cancel the sleep request of a woken target", "elastiService", klog.KRef(elastiService.Namespace, name))
			warning.AddWarning(ctx, "", fmt.Sprintf("the target was woken, but may be put to sleep again: the request to do so could not be canceled: %v", err))
			return result, nil
		}
	}
	if !slices.Contains(requested, elastiService.Name) {
		t.wakeRecorder.record(elastiService, wake)
	}
	again, err := t.wake(ctx, elastiService, minimum, why, false)
	if err != nil {
		return scaling.Result{}, err
	}
	again.Scaled = again.Scaled || result.Scaled
	return again, nil
}

// withSleepRequest returns the names of the ElastiServices of the target that have
// a sleep request in the watch cache. For a target at zero, only elastiService is
// considered.
func (t *targets) withSleepRequest(ctx context.Context, elastiService *elasti.ElastiService) []string {
	var names []string
	if elastiService.Status.SleepRequestedTime != nil {
		names = append(names, elastiService.Name)
	}
	if isAsleep(elastiService) {
		return names
	}
	// The target was scaled: its clients do not wait for a storage that does not respond.
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	for _, name := range elastiService.Status.TargetSharedWith {
		obj, err := t.getWithSleepRequest(ctx, name)
		if err != nil {
			// The controller checks all of them before it scales to zero.
			continue
		}
		if other := obj.(*elasti.ElastiService); other.Status.SleepRequestedTime != nil && other.Spec.ScaleTargetRef.Name == elastiService.Spec.ScaleTargetRef.Name {
			names = append(names, name)
		}
	}
	return names
}

// cancelSleep cancels the sleep request of an ElastiService of a target, and records the
// wake that does so with the same write: a controller that begins when the one before has
// just scaled the target to zero learns from it that the target is needed.
func (t *targets) cancelSleep(ctx context.Context, name, targetName string, wake elasti.WakeRecord) error {
	ctx, cancel := context.WithTimeout(ctx, cancelSleepTimeout)
	defer cancel()
	err := t.updateSleepRequest(ctx, name, nil, func(elastiService *elasti.ElastiService) {
		cancelSleepOf(elastiService, targetName, wake)
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// cancelSleepOf removes the request for sleep of an ElastiService, unless it has been given
// another target than the one that was woken: its request is about that then.
func cancelSleepOf(elastiService *elasti.ElastiService, targetName string, wake elasti.WakeRecord) {
	if elastiService.Spec.ScaleTargetRef.Name != targetName {
		return
	}
	wake.CancelledSleep = true
	elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy = nil, ""
	elastiService.Status.LastWake = &wake
}

// scalingError returns the API status for a failure to read or change the scale
// of a target: a missing target is for the user to correct, a missing permission
// is one of the server, and everything else may be temporary.
func scalingError(elastiService *elasti.ElastiService, err error) error {
	ref := elastiService.Spec.ScaleTargetRef
	var kindError *scaling.KindError
	switch {
	case errors.As(err, &kindError):
		return targetNotFound(elastiService, kindError.Error())
	case apierrors.IsNotFound(err):
		return targetNotFound(elastiService, fmt.Sprintf("its target %s %s %q does not exist: create it or correct spec.scaleTargetRef", ref.APIVersion, ref.Kind, ref.Name))
	case apierrors.IsForbidden(err):
		return apierrors.NewInternalError(fmt.Errorf("the elasti-apiserver may not scale %s %s %q, grant its service account get and update on the scale subresource: %w", ref.APIVersion, ref.Kind, ref.Name, err))
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError(fmt.Sprintf("scaling %s %s %q did not end in time, try again: %v", ref.APIVersion, ref.Kind, ref.Name, err), 1)
	default:
		return apierrors.NewInternalError(fmt.Errorf("scaling %s %s %q: %w", ref.APIVersion, ref.Kind, ref.Name, err))
	}
}

// targetNotFound is a 404 whose details name the target: a missing
// ElastiService has its own name there.
func targetNotFound(elastiService *elasti.ElastiService, problem string) error {
	ref := elastiService.Spec.ScaleTargetRef
	details := &metav1.StatusDetails{Kind: ref.Kind, Name: ref.Name}
	if groupVersion, err := schema.ParseGroupVersion(ref.APIVersion); err == nil {
		details.Group = groupVersion.Group
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotFound,
		Reason:  metav1.StatusReasonNotFound,
		Message: fmt.Sprintf("elastiservice %q cannot be scaled: %s", elastiService.Name, problem),
		Details: details,
	}}
}

func targetOf(elastiService *elasti.ElastiService) scaling.Target {
	return scaling.TargetOf(elastiService.Namespace, v1alpha1.ScaleTargetRef(elastiService.Spec.ScaleTargetRef))
}

func autoscalerOf(elastiService *elasti.ElastiService) scaling.Autoscaler {
	spec := elastiService.Spec.Autoscaler
	if spec == nil {
		return scaling.AutoscalerOf(nil)
	}
	return scaling.AutoscalerOf(&v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerType(spec.Type), Name: spec.Name})
}
