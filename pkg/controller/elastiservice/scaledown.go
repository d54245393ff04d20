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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// scaleDownStep is what a scale-down does next.
type scaleDownStep int

const (
	// scaleDownNone: the target is not requested to sleep.
	scaleDownNone scaleDownStep = iota
	// scaleDownDone: the target sleeps, or has slept, so the request is fulfilled.
	scaleDownDone
	// scaleDownCanceled: the target is used after all.
	scaleDownCanceled
	// scaleDownForbidden: the target must not be scaled to zero.
	scaleDownForbidden
	// scaleDownBlocked: the target cannot be scaled down now.
	scaleDownBlocked
	// scaleDownDrain: the resolvers are being put in the path.
	scaleDownDrain
	// scaleDownScale: the resolvers are in the path, the target can be scaled.
	scaleDownScale
)

// needsResolvers reports whether the step has resolvers in the path of a target that
// may be awake.
func (s scaleDownStep) needsResolvers() bool { return s == scaleDownDrain || s == scaleDownScale }

// scaleDownFacts are the observations that a scale-down follows from.
type scaleDownFacts struct {
	// requested is true while the target is requested to sleep, carriedOut when it has
	// slept by that request: then it was woken, or is about to be seen at zero.
	requested, carriedOut bool
	// scaleKnown and atZero say what is known of the target's scale.
	scaleKnown, atZero bool
	// forbidden is true when sleeping would do harm that was not accepted.
	forbidden bool
	// previousAsleep is true while the target that was named before cannot be woken.
	previousAsleep bool
	// unreachable is true while there is no private Service by which resolvers could
	// find the pods of the target: they could not forward what wakes it.
	unreachable bool
	// portsMissing is true while ports of the Service have no proxy port: resolvers
	// could not hold the traffic to them.
	portsMissing bool
	// used is true when resolvers have seen traffic since the request, and the
	// ElastiService sleeps by traffic.
	used bool
	// resolversReady is true when resolvers can hold the traffic of all IP families of
	// the Service.
	resolversReady bool
	// sliceInPlace is how long the resolver slice has been in place with
	// ready resolvers since the request, or negative when it is not.
	sliceInPlace time.Duration
	// convergence is how long it must be in place.
	convergence time.Duration
}

// decideScaleDown returns what to do next and why.
func decideScaleDown(facts scaleDownFacts) (scaleDownStep, string) {
	switch {
	case !facts.requested:
		return scaleDownNone, "the target is not requested to sleep"
	case !facts.scaleKnown:
		return scaleDownBlocked, "the scale of the target is not known"
	case facts.atZero:
		return scaleDownDone, "the target sleeps"
	case facts.carriedOut:
		return scaleDownDone, "the target has slept"
	case facts.forbidden:
		return scaleDownForbidden, "sleeping would do harm"
	case facts.used:
		return scaleDownCanceled, "there is traffic"
	case facts.previousAsleep:
		return scaleDownBlocked, "the previous target could not be woken"
	case facts.unreachable:
		return scaleDownBlocked, "there is no private Service by which resolvers find the pods"
	case facts.portsMissing:
		return scaleDownBlocked, "there are no proxy ports for some ports of the Service"
	case !facts.resolversReady:
		return scaleDownBlocked, "no resolver is ready to hold the traffic"
	case facts.sliceInPlace < facts.convergence:
		return scaleDownDrain, "the resolvers are being put in the path"
	default:
		return scaleDownScale, "the resolvers are in the path"
	}
}

// nextScaleDownStep returns what the scale-down of an ElastiService does next.
func (c *Controller) nextScaleDownStep(p *pass) scaleDownStep {
	availability, _, _ := c.resolvers.AvailabilityOf(resources.AddressTypes(p.service))
	now := c.clock.Now()
	step, _ := decideScaleDown(scaleDownFacts{
		requested:      p.elastiService.Status.SleepRequestedTime != nil,
		carriedOut:     p.state.recordRequest(p.elastiService.Status.SleepRequestedTime),
		previousAsleep: p.previousAsleep,
		unreachable:    p.unreachable,
		portsMissing:   p.portsMissing,
		scaleKnown:     p.target.Scale != nil,
		atZero:         p.target.AtZero(),
		forbidden:      forbiddenBecause(p.elastiService, p.target.Object) != "",
		used:           usedSince(p.elastiService, now, p.state.drainingSince),
		resolversReady: availability == resolvers.Available,
		sliceInPlace:   p.state.drained(now),
		convergence:    c.convergenceTime(p.elastiService),
	})
	completing := p.state.completing != nil && p.state.completingTarget == c.targetKeys.Of(p.elastiService)
	if completing {
		return scaleDownDrain
	}
	if step.needsResolvers() {
		return step
	}
	if !c.leaveScaleDown(p) {
		return scaleDownDrain
	}
	p.pauseCanceled = p.state.pausing() && !p.state.scaledToZero()
	p.state.endScaleDown()
	return step
}

// restartDrain has the convergence time of a scale-down begin again when the resolvers
// are in the path again, which they were not all the time.
func (c *Controller) restartDrain(p *pass) {
	if !c.scaleDowns.withdraw(p.key(), c.clock.Now()) {
		c.scaleDowns.lose(p.key())
	}
	p.state.stopDrain()
	p.scaleDown = scaleDownDrain
}

// convergenceTime returns how long the resolver slice is in place before the
// target of an ElastiService is scaled to zero. Clients that are late still reach
// the old pods for their grace period.
func (c *Controller) convergenceTime(elastiService *v1alpha1.ElastiService) time.Duration {
	if proxy := elastiService.Spec.Proxy; proxy != nil && proxy.ConvergenceSeconds != nil {
		return time.Duration(*proxy.ConvergenceSeconds) * time.Second
	}
	return c.options.ConvergenceTime
}

// usedSince reports whether resolvers have seen traffic since sleep was requested.
// Only traffic triggers say that such a target is to stay awake: under others
// there may be traffic that is too little for that, and it wakes the target again.
// The request time comes from another replica's clock, so the start of the drain bounds
// it. Report times later than any replica's clock may be are ignored.
func usedSince(elastiService *v1alpha1.ElastiService, now, draining time.Time) bool {
	status := &elastiService.Status
	if status.SleepRequestedTime == nil || !slices.ContainsFunc(elastiService.Spec.Triggers, func(trigger v1alpha1.ScaleTrigger) bool {
		return trigger.Type == triggers.TypeTraffic
	}) {
		return false
	}
	cooldown := time.Duration(ptr.Deref(elastiService.Spec.CooldownPeriod, v1alpha1.DefaultCooldownPeriod)) * time.Second
	// The time of the request is in whole seconds.
	requested := status.SleepRequestedTime.Add(time.Second)
	if !draining.IsZero() && draining.Before(requested) {
		requested = draining
	}
	return slices.ContainsFunc(status.Activity, func(reported v1alpha1.ResolverActivity) bool {
		if reported.Open > 0 && now.Sub(reported.ReportTime.Time).Abs() <= activity.Staleness(cooldown) {
			return true
		}
		last := reported.LastRequestTime
		return last != nil && last.After(requested) && !last.After(now.Add(clockSkew))
	})
}

// reconcileScaleDown is the phase scale-down. It takes the next step: the
// resolvers are put in the path and the data plane gets time to converge (drain),
// the autoscaler is paused (pause), and the target is scaled to zero (scale).
func (c *Controller) reconcileScaleDown(ctx context.Context, p *pass) {
	if !p.manages() {
		return
	}
	if p.pauseCanceled {
		p.result.failed(c.resumePausedAutoscaler(ctx, p))
	}
	p.result.failed(c.continueScaleDown(ctx, p))
	c.refresh(p)
}

// continueScaleDown carries out the step of the scale-down that was decided, and schedules
// the next sync where no watch reports what it waits for.
func (c *Controller) continueScaleDown(ctx context.Context, p *pass) error {
	inPath := p.result.mode == v1alpha1.ModeProxy && p.allAccepting && p.allFamilies
	owedWake := p.state.owedWakeOf(c.targetKeys.Of(p.elastiService))
	switch {
	case p.state.completing != nil:
		defer c.endScaling(p, p.state.completingTarget)
		return c.resolveScaleDown(ctx, p, p.state.completing, errNotConfirmed)
	case owedWake > 0:
		return c.wakeOwed(ctx, p, owedWake)
	case p.scaleDown == scaleDownDone:
		_, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		return err
	case p.scaleDown == scaleDownCanceled:
		removed, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		if removed {
			c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: there is traffic")
		}
		return err
	case p.scaleDown == scaleDownForbidden:
		removed, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		if removed {
			c.event(p.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonSleepFailed, actionSleep, "the target stays awake: %s", forbiddenBecause(p.elastiService, p.target.Object))
		}
		return err
	case !inPath:
		c.leaveScaleDown(p)
		return nil
	case p.scaleDown == scaleDownDrain:
		now := c.clock.Now()
		p.state.startDrain(now)
		left := c.convergenceTime(p.elastiService) - p.state.drained(now)
		if left <= 0 {
			// It ended after the step was decided, and this may be the sync that was to
			// take the next one.
			left = sharedPoll
		}
		c.queue.AddAfter(p.key(), left)
		return nil
	case p.scaleDown == scaleDownScale:
		stopped, err := c.pauseAutoscaler(ctx, p)
		if err != nil {
			return c.giveUpScaleDown(ctx, p, err)
		}
		if !stopped {
			return nil
		}
		c.scaleDowns.agree(c.targetKeys.Of(p.elastiService), p.key(), c.clock.Now())
		return c.scaleWhenAllAgree(ctx, p)
	default:
		return nil
	}
}
