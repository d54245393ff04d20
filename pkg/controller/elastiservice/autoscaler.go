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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

const (
	// pauseTimeout is how long a scale-down waits for an autoscaler to stop. An
	// autoscaler that does not, because its operator is down, does not keep the target
	// awake.
	pauseTimeout = 10 * time.Second
	// pausePoll is how often a scale-down polls for what no watch reports.
	pausePoll = 500 * time.Millisecond
	// clockSkew is by how much the clocks of replicas differ at most. A time that is
	// further ahead is wrong.
	clockSkew = time.Minute
)

// pauseAutoscaler pauses the autoscaler of a target that is about to be scaled
// to zero. It reports whether the autoscaler has stopped: KEDA may be in the
// middle of a decision to scale up, which would come after the scaling to zero.
// The ElastiService is synced again when the autoscaler changes, or after the timeout.
func (c *Controller) pauseAutoscaler(ctx context.Context, p *pass) (bool, error) {
	autoscaler := scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	if autoscaler.Type != scaling.AutoscalerKEDA {
		return true, nil
	}
	if observed := p.autoscaler.Autoscaler; observed != nil && !observed.Scales(p.elastiService.Spec.ScaleTargetRef) {
		// The autoscaler scales another workload.
		return true, nil
	}
	if !p.state.pausing() {
		if err := c.scaling.PauseAutoscaler(ctx, p.elastiService.Namespace, autoscaler); err != nil {
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		}
		observed := p.autoscaler.Autoscaler
		p.state.startPause(c.clock.Now(), observed != nil && observed.Paused)
	}
	waited := p.state.paused(c.clock.Now())
	if waited >= pauseTimeout || c.hasStopped(ctx, p) {
		return true, nil
	}
	c.queue.AddAfter(p.key(), min(pausePoll, pauseTimeout-waited))
	return false, nil
}

// resumePausedAutoscaler resumes an autoscaler that was paused for a scale-down
// which was canceled. What is observed may be behind, so the scale is read first.
func (c *Controller) resumePausedAutoscaler(ctx context.Context, p *pass) error {
	scaleTarget := target.Of(p.elastiService)
	scale, err := c.scaling.Get(ctx, scaleTarget)
	if err != nil || scale.Spec.Replicas == 0 {
		return ignoreNotFound(err)
	}
	err = c.scaling.KeepAutoscalerAwake(ctx, scaleTarget.Namespace, scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler))
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("resuming the autoscaler of a target that stays awake: %w", err)
	}
	return nil
}

// hasStopped reports whether an autoscaler that was paused has stopped, or
// cannot be observed. KEDA's condition Paused is true also while it is paused in
// one direction: when it was so before, it is no evidence. The last that KEDA does
// when it stops is to delete the HorizontalPodAutoscaler through which it scales.
func (c *Controller) hasStopped(ctx context.Context, p *pass) bool {
	observed := p.autoscaler.Autoscaler
	switch {
	case p.autoscaler.Problem != nil:
		return true
	case observed == nil || !observed.PausedByController || !observed.Paused:
		return false
	case !p.state.pausedBefore || observed.Scaler == "":
		return true
	}
	_, err := c.host.AutoscalingV2().HorizontalPodAutoscalers(p.elastiService.Namespace).Get(ctx, observed.Scaler, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
}

// reconcileAutoscaler is the phase autoscaler. It makes the autoscaler of an awake
// target what it should be.
//
// It resumes an autoscaler that is paused although the target is awake: a wake came in the
// middle of the scale-down, this process ended there, or the target was scaled by hand. It
// keeps an autoscaler that scales to zero from undoing a wake, for as long as keepsAwake
// reports. The cache may be stale, so the scale is read before anything is changed.
func (c *Controller) reconcileAutoscaler(ctx context.Context, p *pass) {
	p.result.failed(c.syncAutoscaler(ctx, p))
}

func (c *Controller) syncAutoscaler(ctx context.Context, p *pass) error {
	observed := p.autoscaler.Autoscaler
	scalingDown := p.elastiService.Status.SleepRequestedTime != nil && p.state.draining()
	if scalingDown || p.target.Scale == nil || p.target.AtZero() {
		return nil
	}
	p.state.stopPause()
	if observed == nil || p.conflicting != nil {
		return nil
	}
	keep, left := c.keepsAwake(p)
	keep = keep && observed.Scales(p.elastiService.Spec.ScaleTargetRef)
	if keep && left > 0 && observed.NeedsScaleInPause {
		c.queue.AddAfter(p.key(), left)
	}
	if !observed.PausedByController && observed.ScaleInPausedByController == (keep && observed.NeedsScaleInPause) {
		return nil
	}
	scaleTarget, autoscaler := target.Of(p.elastiService), scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	scale, err := c.scaling.Get(ctx, scaleTarget)
	if err != nil || scale.Spec.Replicas == 0 {
		return ignoreNotFound(err)
	}
	if keep {
		err = c.scaling.KeepAutoscalerAwake(ctx, scaleTarget.Namespace, autoscaler)
	} else {
		err = c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, autoscaler)
	}
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("resuming the autoscaler of an awake target: %w", err)
	}
	return nil
}

// keepsAwake reports whether one of the ElastiServices that name an autoscaler keeps their
// awake target from being scaled to zero by it, and for how long: zero means until it is put
// to sleep.
func (c *Controller) keepsAwake(p *pass) (bool, time.Duration) {
	now, longest := c.clock.Now(), time.Duration(-1)
	resource, _ := scaling.AutoscalerResource(string(p.elastiService.Spec.Autoscaler.Type))
	for _, key := range c.usersOfAutoscaler(resource, resources.AutoscalerKey(p.key().Namespace, p.elastiService.Spec.Autoscaler.Name)) {
		object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
		if !ok {
			continue
		}
		elastiService := object.(*v1alpha1.ElastiService)
		if key == p.key() {
			elastiService = p.elastiService
		}
		keep, left := keepsTargetAwake(elastiService, now)
		if keep && left == 0 {
			return true, 0
		}
		if keep {
			longest = max(longest, left)
		}
	}
	return longest > 0, max(longest, 0)
}

// keepsTargetAwake reports whether an ElastiService keeps its awake target from being scaled
// to zero by the autoscaler, and for how long: zero means until it is put to sleep. An
// ElastiService that never puts its target to sleep keeps it awake for the cooldown after a
// wake, and then leaves it to the autoscaler.
func keepsTargetAwake(elastiService *v1alpha1.ElastiService, now time.Time) (bool, time.Duration) {
	status := &elastiService.Status
	cooldown := time.Duration(ptr.Deref(elastiService.Spec.CooldownPeriod, v1alpha1.DefaultCooldownPeriod)) * time.Second
	switch {
	case !elastiService.DeletionTimestamp.IsZero() || status.PrivateService == "" && len(status.ProxyPorts) == 0:
		return false, 0
	case len(elastiService.Spec.Triggers) > 0 && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionDryRun):
		return true, 0
	case status.Replicas == 0 && meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionTargetFound):
		// The target was woken just now, which the status does not report yet.
		return cooldown > 0, cooldown
	case status.LastScaledUpTime == nil:
		return false, 0
	}
	if status.LastScaledUpTime.After(now.Add(clockSkew)) {
		// The time was written by a clock that has been corrected since.
		return false, 0
	}
	left := status.LastScaledUpTime.Add(cooldown).Sub(now)
	// The clock of the replica that wrote the time may be ahead.
	return left > 0, min(max(left, 0), cooldown)
}
