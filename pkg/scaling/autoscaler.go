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
	"fmt"
)

// PauseAutoscaler keeps the autoscaler from scaling its target until
// ResumeAutoscaler. A HorizontalPodAutoscaler needs no pausing: it is idle
// while its target has zero replicas.
func (c *Client) PauseAutoscaler(ctx context.Context, namespace string, autoscaler Autoscaler) error {
	switch autoscaler.Type {
	case AutoscalerKEDA:
		return c.pauseScaledObject(ctx, namespace, autoscaler.Name)
	case AutoscalerHPA, "":
		return nil
	default:
		return unknownAutoscaler(autoscaler)
	}
}

// ResumeAutoscaler ends a PauseAutoscaler and puts back what the user had set.
// It does nothing when the autoscaler is not paused by PauseAutoscaler.
func (c *Client) ResumeAutoscaler(ctx context.Context, namespace string, autoscaler Autoscaler) error {
	switch autoscaler.Type {
	case AutoscalerKEDA:
		return c.resumeScaledObject(ctx, namespace, autoscaler.Name, false)
	case AutoscalerHPA, "":
		return nil
	default:
		return unknownAutoscaler(autoscaler)
	}
}

// prepareAutoscaler lets a wake go through, and returns the least number of
// replicas that the autoscaler wants.
func (c *Client) prepareAutoscaler(ctx context.Context, namespace string, autoscaler Autoscaler, dryRun bool) (int32, error) {
	switch autoscaler.Type {
	case "":
		return 0, nil
	case AutoscalerKEDA:
		return 0, c.resumeScaledObject(ctx, namespace, autoscaler.Name, dryRun)
	case AutoscalerHPA:
		return c.minReplicas(ctx, namespace, autoscaler.Name)
	default:
		return 0, unknownAutoscaler(autoscaler)
	}
}

func unknownAutoscaler(autoscaler Autoscaler) error {
	return fmt.Errorf("autoscaler %q has the unknown type %q: use %s or %s", autoscaler.Name, autoscaler.Type, AutoscalerKEDA, AutoscalerHPA)
}
