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

package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// autoscalerTimeout is how long a wake waits for the API of the autoscaler. A held
// request waits for the wake, so an autoscaler that cannot be reached must not
// delay it for longer.
const autoscalerTimeout = 2 * time.Second

// Wake scales the target to at least minimum replicas, and never less than one. It
// never lowers the number of replicas, and reads that in the spec of the scale: pods
// may still be terminating. It resumes a KEDA ScaledObject that was paused by
// PauseAutoscaler, keeps one that scales to zero from undoing the wake, and raises
// minimum to the minReplicas of a HorizontalPodAutoscaler. With dryRun nothing is
// written.
//
// A wake is idempotent: any number of callers may wake a target at once.
func (c *Client) Wake(ctx context.Context, target Target, autoscaler Autoscaler, minimum int32, dryRun bool) (Result, error) {
	return c.wake(ctx, target, autoscaler, minimum, managed, dryRun)
}

// Restore does the same as Wake for a target that is not managed any more: its
// autoscaler is left as the user had set it.
func (c *Client) Restore(ctx context.Context, target Target, autoscaler Autoscaler, minimum int32) (Result, error) {
	return c.wake(ctx, target, autoscaler, minimum, released, false)
}

func (c *Client) wake(ctx context.Context, target Target, autoscaler Autoscaler, minimum int32, custody custody, dryRun bool) (Result, error) {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return Result{}, err
	}
	desired := max(minimum, 1)

	// The scale is read while the autoscaler is prepared, and written after the
	// autoscaler was resumed: one that is still paused at zero would undo it.
	var autoscalerMinimum int32
	var autoscalerErr error
	prepared := make(chan struct{})
	go func() {
		defer close(prepared)
		prepareCtx, cancel := context.WithTimeout(ctx, autoscalerTimeout)
		defer cancel()
		autoscalerMinimum, autoscalerErr = c.prepareAutoscaler(prepareCtx, target.Namespace, autoscaler, custody, dryRun)
	}()
	var scale *autoscalingv1.Scale
	scale, err = c.get(ctx, resource, target)
	<-prepared
	if err != nil {
		return Result{AutoscalerError: autoscalerErr}, err
	}
	desired = max(desired, autoscalerMinimum)

	return c.raise(ctx, resource, target, scale, desired, autoscalerErr, dryRun)
}

// WakeFromZero does the same as Wake for a target that is at zero as far as the
// caller knows, with one request where Wake makes two. When the target is not at zero
// after all, it does what Wake does.
func (c *Client) WakeFromZero(ctx context.Context, target Target, autoscaler Autoscaler, minimum int32) (Result, error) {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return Result{}, err
	}
	prepareCtx, cancel := context.WithTimeout(ctx, autoscalerTimeout)
	defer cancel()
	autoscalerMinimum, autoscalerErr := c.prepareAutoscaler(prepareCtx, target.Namespace, autoscaler, managed, false)
	desired := max(minimum, 1, autoscalerMinimum)
	scale, err := c.scaleFromZero(ctx, resource, target, desired)
	if err == nil {
		return Result{Replicas: scale.Spec.Replicas, Scaled: true, FromZero: true, AutoscalerError: autoscalerErr}, nil
	}
	if !wasNotAtZero(err) {
		return Result{AutoscalerError: autoscalerErr}, err
	}
	return c.raise(ctx, resource, target, nil, desired, autoscalerErr, false)
}

// raise scales the target to at least the desired replicas. A nil scale is read first.
func (c *Client) raise(ctx context.Context, resource schema.GroupVersionResource, target Target, scale *autoscalingv1.Scale, desired int32, autoscalerErr error, dryRun bool) (Result, error) {
	var before int32
	scale, scaled, err := c.change(ctx, resource, target, scale, dryRun, func(replicas int32) int32 {
		before = replicas
		return max(replicas, desired)
	})
	if err != nil {
		return Result{AutoscalerError: autoscalerErr}, err
	}
	return Result{Replicas: scale.Spec.Replicas, Scaled: scaled, FromZero: scaled && before == 0, AutoscalerError: autoscalerErr}, nil
}

// scaleFromZero sets the replicas of a target at zero. A scale of zero replicas has
// no such field in JSON, which the server tests and changes in one step.
func (c *Client) scaleFromZero(ctx context.Context, resource schema.GroupVersionResource, target Target, replicas int32) (*autoscalingv1.Scale, error) {
	const path = "/spec/replicas"
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": path, "value": nil},
		{"op": "add", "path": path, "value": replicas},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the patch that scales %s: %w", target, err)
	}
	// Recorded before the write: a watch may deliver it before the response.
	c.raised.Add(raisedKey{resource.GroupResource(), target.Namespace, target.Name}, c.clock.Now())
	scale := &autoscalingv1.Scale{}
	err = c.rest.Patch(types.JSONPatchType).AbsPath(versionPath(resource.GroupVersion())...).
		Namespace(target.Namespace).Resource(resource.Resource).Name(target.Name).SubResource("scale").
		Param("fieldManager", v1alpha1.FieldManager).
		Body(patch).
		Do(ctx).Into(scale)
	if err != nil {
		c.forgetUnserved(resource, err)
		return nil, fmt.Errorf("scaling %s: %w", target, err)
	}
	return scale, nil
}

// wasNotAtZero reports whether scaleFromZero failed in a way in which reading
// the scale and writing it may not: the target was not at zero, it changed
// meanwhile, or the server rejects such patches of its scale.
func wasNotAtZero(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonConflict, metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
		metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonForbidden:
		return true
	}
	return false
}
