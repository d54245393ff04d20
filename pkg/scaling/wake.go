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
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
)

// autoscalerPatience is how long a wake waits for the API of the autoscaler.
// A held request waits for the wake, so an autoscaler that cannot be reached
// must not hold it up for longer.
const autoscalerPatience = 2 * time.Second

// Wake makes the target have at least minimum replicas, and never less than
// one. It never lowers the number of replicas, and looks at what the scale
// asks for, not at the pods that may still be terminating. It resumes a KEDA
// ScaledObject that was paused by PauseAutoscaler, and raises minimum to the
// minReplicas of a HorizontalPodAutoscaler. With dryRun nothing is written.
//
// A wake is idempotent: any number of callers may wake a target at once.
func (c *Client) Wake(ctx context.Context, target Target, autoscaler Autoscaler, minimum int32, dryRun bool) (Result, error) {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return Result{}, err
	}
	wanted := max(minimum, 1)

	// The scale is read while the autoscaler is asked, and written after the
	// autoscaler was resumed: one that is still paused at zero would undo it.
	var autoscalerMinimum int32
	var autoscalerErr error
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		askCtx, cancel := context.WithTimeout(ctx, autoscalerPatience)
		defer cancel()
		autoscalerMinimum, autoscalerErr = c.prepareAutoscaler(askCtx, target.Namespace, autoscaler, dryRun)
	}()
	var scale *autoscalingv1.Scale
	scale, err = c.get(ctx, resource, target)
	<-asked
	if err != nil {
		return Result{AutoscalerError: autoscalerErr}, err
	}
	wanted = max(wanted, autoscalerMinimum)

	scale, scaled, err := c.change(ctx, resource, target, scale, dryRun, func(replicas int32) int32 { return max(replicas, wanted) })
	if err != nil {
		return Result{AutoscalerError: autoscalerErr}, err
	}
	return Result{Replicas: scale.Spec.Replicas, Scaled: scaled, AutoscalerError: autoscalerErr}, nil
}
