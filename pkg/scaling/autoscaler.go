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
// KeepAutoscalerAwake or ResumeAutoscaler. A HorizontalPodAutoscaler needs no
// pausing: it is idle while its target was scaled to zero by another client.
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

// KeepAutoscalerAwake ends a PauseAutoscaler and puts back what the user had
// set, but for this: an autoscaler that scales to zero by itself is kept from
// that, until ResumeAutoscaler or PauseAutoscaler, if it can be. A
// HorizontalPodAutoscaler cannot.
func (c *Client) KeepAutoscalerAwake(ctx context.Context, namespace string, autoscaler Autoscaler) error {
	return c.endPause(ctx, namespace, autoscaler, managed, false)
}

// ResumeAutoscaler ends a PauseAutoscaler and a KeepAutoscalerAwake, and puts
// back what the user had set. It does nothing when the autoscaler is not paused
// by this product.
func (c *Client) ResumeAutoscaler(ctx context.Context, namespace string, autoscaler Autoscaler) error {
	return c.endPause(ctx, namespace, autoscaler, released, false)
}

// custody is whether the product or the autoscaler controls an awake target.
type custody int

const (
	// managed: the target is to stay awake until this product scales it to zero.
	managed custody = iota
	// released: the target is left to its autoscaler.
	released
)

func (c *Client) endPause(ctx context.Context, namespace string, autoscaler Autoscaler, custody custody, dryRun bool) error {
	switch autoscaler.Type {
	case AutoscalerKEDA:
		if custody == managed {
			return c.keepScaledObjectAwake(ctx, namespace, autoscaler.Name, dryRun)
		}
		return c.resumeScaledObject(ctx, namespace, autoscaler.Name, dryRun)
	case AutoscalerHPA, "":
		return nil
	default:
		return unknownAutoscaler(autoscaler)
	}
}

// prepareAutoscaler keeps the autoscaler from undoing a wake, and returns the least
// number of replicas that the autoscaler sets.
func (c *Client) prepareAutoscaler(ctx context.Context, namespace string, autoscaler Autoscaler, custody custody, dryRun bool) (int32, error) {
	if autoscaler.Type == AutoscalerHPA {
		return c.minReplicas(ctx, namespace, autoscaler.Name)
	}
	return 0, c.endPause(ctx, namespace, autoscaler, custody, dryRun)
}

func unknownAutoscaler(autoscaler Autoscaler) error {
	return fmt.Errorf("autoscaler %q has the unknown type %q: use %s or %s", autoscaler.Name, autoscaler.Type, AutoscalerKEDA, AutoscalerHPA)
}
