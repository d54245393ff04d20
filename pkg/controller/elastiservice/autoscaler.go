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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// pauseTimeout is how long a scale-down waits for an autoscaler to report that
// it is paused. One that does not, such as when its operator is down, does not
// keep the target awake.
const pauseTimeout = 10 * time.Second

// pauseAutoscaler pauses the autoscaler of a target that is about to be scaled
// to zero. It reports whether the autoscaler has stopped: KEDA may be in the
// middle of a decision to scale up, which would come after the scaling to zero.
// A change of the autoscaler starts another sync, or else the timeout does.
func (c *Controller) pauseAutoscaler(ctx context.Context, p *pass) (bool, error) {
	autoscaler := target.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	if autoscaler.Type != scaling.AutoscalerKEDA {
		return true, nil
	}
	if !p.state.pausing() {
		if err := c.scaling.PauseAutoscaler(ctx, p.elastiService.Namespace, autoscaler); err != nil {
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		}
		p.state.startPause(c.clock.Now())
	}
	waited := p.state.paused(c.clock.Now())
	if p.autoscaler.Stopped() || waited >= pauseTimeout {
		return true, nil
	}
	c.queue.AddAfter(p.key(), pauseTimeout-waited)
	return false, nil
}

// reconcileAutoscaler is the phase autoscaler. It resumes an autoscaler that is
// paused for a sleep that did not come, or that ended without the controller: a
// wake came in the middle of the scale-down, this process ended there, or the
// target was scaled by hand. What is observed may be behind, so the scale is read.
func (c *Controller) reconcileAutoscaler(ctx context.Context, p *pass) {
	p.result.failed(c.resumeAutoscaler(ctx, p))
}

func (c *Controller) resumeAutoscaler(ctx context.Context, p *pass) error {
	scalingDown := p.elastiService.Status.SleepRequestedTime != nil && p.state.draining()
	if scalingDown || p.target.Scale == nil || p.target.AtZero() {
		return nil
	}
	p.state.stopPause()
	observed := p.autoscaler.Autoscaler
	if observed == nil || !observed.PausedByController || p.conflicting != nil {
		return nil
	}
	scaleTarget, autoscaler := target.Of(p.elastiService), target.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	scale, err := c.scaling.Get(ctx, scaleTarget)
	if err != nil || scale.Spec.Replicas == 0 {
		return ignoreNotFound(err)
	}
	return ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, autoscaler))
}
