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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// convergeTime is how long the resolver slice is in place before the target is
// scaled to zero. kube-proxy takes up to a second to act on a new slice, and
// the watches of nodes and ingresses are a little behind. It is a time and not
// a question because nobody can be asked: a connection to the Service from here
// tells of the node that the controller runs on, and not of the others, nor of
// ingresses and traffic policies. Who is late still reaches the old pods for
// their grace period.
const convergeTime = 3 * time.Second

// descentStep is what a descent does next.
type descentStep int

const (
	// descentNone: nobody asks for the target to sleep.
	descentNone descentStep = iota
	// descentDone: the target sleeps, so the request is fulfilled.
	descentDone
	// descentCalledOff: the target is used after all.
	descentCalledOff
	// descentBlocked: the target cannot be put to sleep now.
	descentBlocked
	// descentConverge: the resolvers are being put in the path.
	descentConverge
	// descentScale: the resolvers are in the path, the target can be scaled.
	descentScale
)

// descentFacts are the observations that a descent follows from.
type descentFacts struct {
	// requested is true while somebody asks for the target to sleep.
	requested bool
	// scaleKnown and AtZero say what is known of the target's scale.
	scaleKnown, atZero bool
	// used is true when resolvers have seen traffic since the request, and the
	// ElastiService sleeps by traffic.
	used bool
	// Available is true when a resolver can hold traffic.
	resolversReady bool
	// sliceInPlace is how long the resolver slice has been in place with
	// ready resolvers since the request, or negative when it is not.
	sliceInPlace time.Duration
}

// decideDescent returns what to do next and why.
func decideDescent(facts descentFacts) (descentStep, string) {
	switch {
	case !facts.requested:
		return descentNone, "nobody asks for the target to sleep"
	case !facts.scaleKnown:
		return descentBlocked, "the scale of the target is not known"
	case facts.atZero:
		return descentDone, "the target sleeps"
	case facts.used:
		return descentCalledOff, "there is traffic"
	case !facts.resolversReady:
		return descentBlocked, "no resolver is ready to hold the traffic"
	case facts.sliceInPlace < convergeTime:
		return descentConverge, "the resolvers are being put in the path"
	default:
		return descentScale, "the resolvers are in the path"
	}
}

// descentOf returns what the descent of an ElastiService does next.
func (c *Controller) descentOf(v *view, memory *memory) descentStep {
	state, _, _ := c.resolvers.Availability()
	facts := descentFacts{
		requested:      v.elastiService.Status.SleepRequestedTime != nil,
		scaleKnown:     v.target.Scale != nil,
		atZero:         v.target.AtZero(),
		used:           usedSince(v.elastiService, c.clock.Now()),
		resolversReady: state == resolvers.Available,
		sliceInPlace:   -1,
	}
	if !memory.descentSince.IsZero() {
		facts.sliceInPlace = c.clock.Since(memory.descentSince)
	}
	step, _ := decideDescent(facts)
	if step != descentConverge && step != descentScale {
		memory.descentSince = time.Time{}
	}
	return step
}

// usedSince tells whether resolvers have seen traffic since sleep was requested.
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

// descend takes the next step of a descent. inPath says whether the resolver
// slice is in place with every ready resolver.
func (c *Controller) descend(ctx context.Context, v *view, memory *memory, step descentStep, inPath bool) error {
	switch {
	case step == descentDone:
		_, err := c.takeSleepRequest(ctx, v.elastiService, memory)
		return err
	case step == descentCalledOff:
		taken, err := c.takeSleepRequest(ctx, v.elastiService, memory)
		if taken {
			c.event(v.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: there is traffic")
		}
		return err
	case !inPath:
		return nil
	case step == descentConverge:
		if memory.descentSince.IsZero() {
			memory.descentSince = c.clock.Now()
		}
		c.queue.AddAfter(resources.KeyOf(v.elastiService), convergeTime-c.clock.Since(memory.descentSince))
		return nil
	case step == descentScale:
		stopped, err := c.pauseAutoscaler(ctx, v, memory)
		if err != nil {
			memory.descentSince, memory.pausing = time.Time{}, time.Time{}
			return c.giveUpSleep(ctx, v, memory, err)
		}
		if !stopped {
			return nil
		}
		memory.descentSince, memory.pausing = time.Time{}, time.Time{}
		return c.putToSleep(ctx, v, memory)
	default:
		return nil
	}
}

// putToSleep scales the target, whose autoscaler is paused, to zero. The request
// stays until that is done: a wake that comes meanwhile takes it back, and then
// the target is woken again; and whoever goes on after a crash finds it. When a
// step fails, what was done before is undone, and only then the request is given
// up: the resolvers leave the path with it.
func (c *Controller) putToSleep(ctx context.Context, v *view, memory *memory) error {
	requested, err := c.stillRequested(ctx, v.elastiService)
	if err != nil {
		return err
	}
	scaleTarget := target.Of(v.elastiService)
	if !requested {
		c.event(v.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: it is used")
		return ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, scaleTarget.Namespace, target.AutoscalerOf(v.elastiService.Spec.Autoscaler)))
	}
	if _, err := c.scaling.Scale(ctx, scaleTarget, 0, false); err != nil {
		return c.giveUpSleep(ctx, v, memory, err)
	}
	memory.leavingSince = c.clock.Now()
	taken, err := c.takeSleepRequestOrMiss(ctx, v.elastiService, memory)
	if err != nil {
		// The next look finds the target asleep, and takes the request then.
		return err
	}
	if !taken {
		return c.wakeAgain(ctx, v)
	}
	// The watch of the target may be behind: until it shows zero, the pods that
	// are about to go still look as if they could serve.
	memory.slept = c.clock.Now()
	c.queue.AddAfter(resources.KeyOf(v.elastiService), leavingTime)
	klog.FromContext(ctx).V(2).Info("Put a target to sleep", "elastiService", klog.KObj(v.elastiService))
	c.event(v.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSlept, actionSleep, "scaled %s %s to 0", scaleTarget.Kind, scaleTarget.Name)
	return nil
}

// giveUpSleep lets the autoscaler go on, and then forgets that sleep was
// requested. Where that fails, the request stays, so that it is tried again.
func (c *Controller) giveUpSleep(ctx context.Context, v *view, memory *memory, cause error) error {
	c.event(v.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonSleepFailed, actionSleep, "the target stays awake: %v", cause)
	autoscaler := target.AutoscalerOf(v.elastiService.Spec.Autoscaler)
	// A pause that failed may have been made all the same.
	if err := ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, v.elastiService.Namespace, autoscaler)); err != nil && !apierrors.IsForbidden(err) {
		return errors.Join(cause, err)
	}
	_, err := c.takeSleepRequestOrMiss(ctx, v.elastiService, memory)
	return errors.Join(cause, err)
}

// wakeAgain wakes a target that was asked to wake while it was put to sleep.
func (c *Controller) wakeAgain(ctx context.Context, v *view) error {
	result, err := c.scaling.Wake(ctx, target.Of(v.elastiService), target.AutoscalerOf(v.elastiService.Spec.Autoscaler), target.MinReplicas(v.elastiService), false)
	if err != nil {
		return fmt.Errorf("waking the target, which is needed again: %w", err)
	}
	c.event(v.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "scaled %s %s to %d: it was woken while it was put to sleep", v.elastiService.Spec.ScaleTargetRef.Kind, v.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	return nil
}

// stillRequested asks the storage whether the target is to sleep. What the
// watch knows may be a moment old.
func (c *Controller) stillRequested(ctx context.Context, elastiService *v1alpha1.ElastiService) (bool, error) {
	current, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).Get(ctx, elastiService.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking whether the target is still to sleep: %w", err)
	}
	return current.UID == elastiService.UID && current.Status.SleepRequestedTime != nil &&
		!usedSince(current, c.clock.Now()) && current.DeletionTimestamp.IsZero(), nil
}

// takeSleepRequest removes the request for sleep, unless the ElastiService was
// changed since it was looked at. It reports whether it did.
func (c *Controller) takeSleepRequest(ctx context.Context, elastiService *v1alpha1.ElastiService, memory *memory) (bool, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": elastiService.UID, "resourceVersion": elastiService.ResourceVersion},
		"status":   map[string]any{"sleepRequestedTime": nil},
	})
	if err != nil {
		return false, err
	}
	updated, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		Patch(ctx, elastiService.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The change itself brings this ElastiService back.
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("taking the request for sleep: %w", err)
	}
	memory.written = updated
	return true, nil
}

// takeSleepRequestOrMiss removes the request for sleep however the ElastiService
// has changed since. It reports false when there is none any more.
func (c *Controller) takeSleepRequestOrMiss(ctx context.Context, elastiService *v1alpha1.ElastiService, memory *memory) (bool, error) {
	// A change in between is one of its status, which comes a few times a second.
	for {
		current, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).Get(ctx, elastiService.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("looking at the request for sleep: %w", err)
		}
		if current.UID != elastiService.UID || current.Status.SleepRequestedTime == nil {
			return false, nil
		}
		if taken, err := c.takeSleepRequest(ctx, current, memory); taken || err != nil {
			return taken, err
		}
	}
}

// pausePatience is how long a descent waits for an autoscaler to report that
// it is paused. One that does not, such as when its operator is down, does not
// keep the target awake.
const pausePatience = 10 * time.Second

// pauseAutoscaler pauses the autoscaler of a target that is about to be scaled
// to zero. It reports whether the autoscaler has stopped: KEDA may be in the
// middle of a decision to scale up, which would come after the scaling to zero.
// Its change brings the ElastiService back, or else the end of the patience.
func (c *Controller) pauseAutoscaler(ctx context.Context, v *view, memory *memory) (bool, error) {
	autoscaler := target.AutoscalerOf(v.elastiService.Spec.Autoscaler)
	if autoscaler.Type != scaling.AutoscalerKEDA {
		return true, nil
	}
	if memory.pausing.IsZero() {
		if err := c.scaling.PauseAutoscaler(ctx, v.elastiService.Namespace, autoscaler); err != nil {
			return apierrors.IsNotFound(err), ignoreNotFound(err)
		}
		memory.pausing = c.clock.Now()
	}
	waited := c.clock.Since(memory.pausing)
	if v.autoscaler.Stopped() || waited >= pausePatience {
		return true, nil
	}
	c.queue.AddAfter(resources.KeyOf(v.elastiService), pausePatience-waited)
	return false, nil
}

// resumeForgotten resumes an autoscaler that is paused for a sleep that did not
// come, or that ended without us: a wake came in the middle of the descent,
// this process ended there, or somebody scaled the target by hand. What is
// observed may be behind, so the scale is read.
func (c *Controller) resumeForgotten(ctx context.Context, v *view, memory *memory) error {
	observed := v.autoscaler.Autoscaler
	descending := v.elastiService.Status.SleepRequestedTime != nil && !memory.descentSince.IsZero()
	if descending || v.target.Scale == nil || v.target.AtZero() {
		return nil
	}
	memory.pausing = time.Time{}
	if observed == nil || !observed.PausedByController || v.rival != nil {
		return nil
	}
	target, autoscaler := target.Of(v.elastiService), target.AutoscalerOf(v.elastiService.Spec.Autoscaler)
	scale, err := c.scaling.Get(ctx, target)
	if err != nil || scale.Spec.Replicas == 0 {
		return ignoreNotFound(err)
	}
	return ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, target.Namespace, autoscaler))
}
