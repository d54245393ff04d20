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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// convergeTime is how long the resolver slice is in place before the target is
// scaled to zero. kube-proxy takes up to a second to act on a new slice, and
// the watches of nodes and ingresses are a little behind.
const convergeTime = 3 * time.Second

// descentStep is what a descent does next.
type descentStep int

const (
	// descentNone: nobody asks for the target to sleep.
	descentNone descentStep = iota
	// descentDone: the target sleeps, so the request is fulfilled.
	descentDone
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
	// scaleKnown and atZero say what is known of the target's scale.
	scaleKnown, atZero bool
	// resolversReady is true when a resolver can hold traffic.
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
	state, _, _ := c.resolvers.availability()
	facts := descentFacts{
		requested:      v.elastiService.Status.SleepRequestedTime != nil,
		scaleKnown:     v.target.scale != nil,
		atZero:         v.target.atZero(),
		resolversReady: state == resolversReady,
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

// descend takes the next step of a descent. inPath says whether the resolver
// slice is in place with every ready resolver.
func (c *Controller) descend(ctx context.Context, v *view, memory *memory, step descentStep, inPath bool) error {
	switch {
	case step == descentDone:
		_, err := c.takeSleepRequest(ctx, v.elastiService, memory)
		return err
	case !inPath:
		return nil
	case step == descentConverge:
		if memory.descentSince.IsZero() {
			memory.descentSince = c.clock.Now()
		}
		c.queue.AddAfter(keyOf(v.elastiService), convergeTime-c.clock.Since(memory.descentSince))
		return nil
	case step == descentScale:
		stopped, err := c.pauseAutoscaler(ctx, v, memory)
		if err != nil {
			c.event(v.elastiService, corev1.EventTypeWarning, ReasonSleepFailed, actionSleep, "the target stays awake: %v", err)
			_, takeErr := c.takeSleepRequest(ctx, v.elastiService, memory)
			return takeErr
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

// putToSleep scales the target, whose autoscaler is paused, to zero. The
// request is taken first: a wake that came in the meantime took it back, and
// taking it fails then. When the target cannot be scaled, its autoscaler goes
// on as before.
func (c *Controller) putToSleep(ctx context.Context, v *view, memory *memory) error {
	taken, err := c.takeSleepRequest(ctx, v.elastiService, memory)
	if err != nil || !taken {
		return err
	}
	target, autoscaler := targetOf(v.elastiService), autoscalerOf(v.elastiService.Spec.Autoscaler)
	if _, err := c.scaling.Scale(ctx, target, 0, false); err != nil {
		c.event(v.elastiService, corev1.EventTypeWarning, ReasonSleepFailed, actionSleep, "the target stays awake: %v", err)
		return errors.Join(err, ignoreNotFound(c.scaling.ResumeAutoscaler(context.WithoutCancel(ctx), target.Namespace, autoscaler)))
	}
	klog.FromContext(ctx).V(2).Info("Put a target to sleep", "elastiService", klog.KObj(v.elastiService))
	c.event(v.elastiService, corev1.EventTypeNormal, ReasonSlept, actionSleep, "scaled %s %s to 0", target.Kind, target.Name)
	return nil
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
