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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// scaleDownStep is what a scale-down does next.
type scaleDownStep int

const (
	// scaleDownNone: the target is not asked to sleep.
	scaleDownNone scaleDownStep = iota
	// scaleDownDone: the target sleeps, so the request is fulfilled.
	scaleDownDone
	// scaleDownCancelled: the target is used after all.
	scaleDownCancelled
	// scaleDownForbidden: the target must not be scaled to zero.
	scaleDownForbidden
	// scaleDownBlocked: the target cannot be scaled down now.
	scaleDownBlocked
	// scaleDownDrain: the resolvers are being put in the path.
	scaleDownDrain
	// scaleDownScale: the resolvers are in the path, the target can be scaled.
	scaleDownScale
)

// scaleDownFacts are the observations that a scale-down follows from.
type scaleDownFacts struct {
	// requested is true while the target is asked to sleep.
	requested bool
	// scaleKnown and AtZero say what is known of the target's scale.
	scaleKnown, atZero bool
	// forbidden is true when sleeping would do harm that was not accepted.
	forbidden bool
	// used is true when resolvers have seen traffic since the request, and the
	// ElastiService sleeps by traffic.
	used bool
	// Available is true when a resolver can hold traffic.
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
		return scaleDownNone, "the target is not asked to sleep"
	case !facts.scaleKnown:
		return scaleDownBlocked, "the scale of the target is not known"
	case facts.atZero:
		return scaleDownDone, "the target sleeps"
	case facts.forbidden:
		return scaleDownForbidden, "sleeping would do harm"
	case facts.used:
		return scaleDownCancelled, "there is traffic"
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
	availability, _, _ := c.resolvers.Availability()
	now := c.clock.Now()
	step, _ := decideScaleDown(scaleDownFacts{
		requested:      p.elastiService.Status.SleepRequestedTime != nil,
		scaleKnown:     p.target.Scale != nil,
		atZero:         p.target.AtZero(),
		forbidden:      forbiddenBecause(p) != "",
		used:           usedSince(p.elastiService, now),
		resolversReady: availability == resolvers.Available,
		sliceInPlace:   p.state.drained(now),
		convergence:    c.convergenceTime(p.elastiService),
	})
	if step != scaleDownDrain && step != scaleDownScale {
		p.state.stopDrain()
	}
	return step
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
func usedSince(elastiService *v1alpha1.ElastiService, now time.Time) bool {
	status := &elastiService.Status
	if status.SleepRequestedTime == nil || !slices.ContainsFunc(elastiService.Spec.Triggers, func(trigger v1alpha1.ScaleTrigger) bool {
		return trigger.Type == triggers.TypeTraffic
	}) {
		return false
	}
	cooldown := time.Duration(ptr.Deref(elastiService.Spec.CooldownPeriod, v1alpha1.DefaultCooldownPeriod)) * time.Second
	// The time of the request is in whole seconds.
	requested := status.SleepRequestedTime.Add(time.Second)
	return slices.ContainsFunc(status.Activity, func(reported v1alpha1.ResolverActivity) bool {
		return reported.Open > 0 && now.Sub(reported.ReportTime.Time) <= activity.Staleness(cooldown) ||
			reported.LastRequestTime != nil && reported.LastRequestTime.After(requested)
	})
}

// reconcileScaleDown is the phase scale-down. It takes the next step: the
// resolvers are put in the path and the data plane gets time to converge (drain),
// the autoscaler is paused (pause), and the target is scaled to zero (scale).
func (c *Controller) reconcileScaleDown(ctx context.Context, p *pass) {
	if !p.manages() {
		return
	}
	p.result.failed(c.continueScaleDown(ctx, p))
	c.refresh(p)
}

func (c *Controller) continueScaleDown(ctx context.Context, p *pass) error {
	inPath := p.result.mode == v1alpha1.ModeProxy && p.allListening
	switch {
	case p.scaleDown == scaleDownDone:
		_, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		return err
	case p.scaleDown == scaleDownCancelled:
		removed, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		if removed {
			c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: there is traffic")
		}
		return err
	case p.scaleDown == scaleDownForbidden:
		removed, err := c.removeSleepRequest(ctx, p.elastiService, p.state)
		if removed {
			c.event(p.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonSleepFailed, actionSleep, "the target stays awake: %s", forbiddenBecause(p))
		}
		return err
	case !inPath:
		return nil
	case p.scaleDown == scaleDownDrain:
		now := c.clock.Now()
		p.state.startDrain(now)
		c.queue.AddAfter(p.key(), c.convergenceTime(p.elastiService)-p.state.drained(now))
		return nil
	case p.scaleDown == scaleDownScale:
		stopped, err := c.pauseAutoscaler(ctx, p)
		if err != nil {
			p.state.endScaleDown()
			return c.giveUpScaleDown(ctx, p, err)
		}
		if !stopped {
			return nil
		}
		p.state.endScaleDown()
		return c.scaleToZero(ctx, p)
	default:
		return nil
	}
}

// scaleToZero scales the target, whose autoscaler is paused, to zero. The request
// stays until that is done: a wake that comes meanwhile removes it, and then the
// target is woken again; and the controller that goes on after a crash finds it.
// When a step fails, what was done before is undone, and only then the request is
// removed: the resolvers leave the path with it.
func (c *Controller) scaleToZero(ctx context.Context, p *pass) error {
	requested, err := c.stillRequested(ctx, p.elastiService)
	if err != nil {
		return err
	}
	scaleTarget := target.Of(p.elastiService)
	if !requested {
		c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: it is used")
		return ignoreNotFound(c.scaling.KeepAutoscalerAwake(ctx, scaleTarget.Namespace, target.AutoscalerOf(p.elastiService.Spec.Autoscaler)))
	}
	if _, err := c.scaling.Scale(ctx, scaleTarget, 0, false); err != nil {
		return c.giveUpScaleDown(ctx, p, err)
	}
	p.state.startTermination(c.clock.Now())
	removed, err := c.removeAnySleepRequest(ctx, p.elastiService, p.state)
	if err != nil {
		// The next sync finds the target asleep, and removes the request then.
		return err
	}
	if !removed {
		return c.wakeAgain(ctx, p)
	}
	// The watch of the target may be behind: until it shows zero, the pods that
	// are about to terminate still look as if they could serve.
	p.state.recordScaledToZero(c.clock.Now())
	c.queue.AddAfter(p.key(), terminatingGrace)
	klog.FromContext(ctx).V(2).Info("Scaled a target to zero", "elastiService", klog.KObj(p.elastiService))
	c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSlept, actionSleep, "scaled %s %s to 0", scaleTarget.Kind, scaleTarget.Name)
	return nil
}

// giveUpScaleDown resumes the autoscaler, and then removes the request for sleep.
// Where that fails, the request stays, so that it is tried again.
func (c *Controller) giveUpScaleDown(ctx context.Context, p *pass, cause error) error {
	c.event(p.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonSleepFailed, actionSleep, "the target stays awake: %v", cause)
	autoscaler := target.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	// A pause that failed may have been made all the same.
	if err := ignoreNotFound(c.scaling.KeepAutoscalerAwake(ctx, p.elastiService.Namespace, autoscaler)); err != nil && !apierrors.IsForbidden(err) {
		return errors.Join(cause, err)
	}
	_, err := c.removeAnySleepRequest(ctx, p.elastiService, p.state)
	return errors.Join(cause, err)
}

// wakeAgain wakes a target that was asked to wake while it was scaled to zero.
func (c *Controller) wakeAgain(ctx context.Context, p *pass) error {
	result, err := c.scaling.Wake(ctx, target.Of(p.elastiService), target.AutoscalerOf(p.elastiService.Spec.Autoscaler), target.MinReplicas(p.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target, which is needed again: %w", err)
	}
	c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "scaled %s %s to %d: it was woken while it was put to sleep", p.elastiService.Spec.ScaleTargetRef.Kind, p.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	return nil
}

// stillRequested reports whether, according to the storage, the
// target is to sleep. What the watch has may be a moment old.
func (c *Controller) stillRequested(ctx context.Context, elastiService *v1alpha1.ElastiService) (bool, error) {
	current, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).Get(ctx, elastiService.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading whether the target is still to sleep: %w", err)
	}
	return current.UID == elastiService.UID && current.Status.SleepRequestedTime != nil &&
		!usedSince(current, c.clock.Now()) && current.DeletionTimestamp.IsZero(), nil
}

// errChanged means that an ElastiService was changed since it was read.
var errChanged = errors.New("the ElastiService was changed meanwhile")

// errNotRequested means that sleep is not requested any more.
var errNotRequested = errors.New("sleep is not requested any more")

// removeSleepRequest removes the request for sleep, unless the ElastiService was
// changed since it was read. It reports whether it did.
func (c *Controller) removeSleepRequest(ctx context.Context, elastiService *v1alpha1.ElastiService, state *state) (bool, error) {
	return c.updateSleepRequest(ctx, elastiService, state, func(stored *v1alpha1.ElastiService) error {
		if stored.ResourceVersion != elastiService.ResourceVersion {
			// The change itself brings this ElastiService back.
			return errChanged
		}
		return nil
	})
}

// removeAnySleepRequest removes the request for sleep however the ElastiService
// has changed since. It reports false when there is none any more.
func (c *Controller) removeAnySleepRequest(ctx context.Context, elastiService *v1alpha1.ElastiService, state *state) (bool, error) {
	return c.updateSleepRequest(ctx, elastiService, state, func(stored *v1alpha1.ElastiService) error {
		if stored.Status.SleepRequestedTime == nil {
			return errNotRequested
		}
		return nil
	})
}

// updateSleepRequest removes the request for sleep if check allows it, and reports
// whether it did.
func (c *Controller) updateSleepRequest(ctx context.Context, elastiService *v1alpha1.ElastiService, state *state, check func(stored *v1alpha1.ElastiService) error) (bool, error) {
	updated, err := c.options.Statuses.UpdateStatus(ctx, resources.KeyOf(elastiService), elastiService.UID, func(stored *v1alpha1.ElastiService) error {
		if err := check(stored); err != nil {
			return err
		}
		stored.Status.SleepRequestedTime = nil
		return nil
	})
	if errors.Is(err, errChanged) || errors.Is(err, errNotRequested) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing the request for sleep: %w", err)
	}
	state.recordWrite(updated)
	return true, nil
}
