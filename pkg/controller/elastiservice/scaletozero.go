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
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// scaleTimeout bounds the calls with which a target is checked and scaled to zero.
const scaleTimeout = 10 * time.Second

// recheckDelay is after how long a target that has changed is checked again when no watch
// reports the change.
const recheckDelay = 5 * time.Second

// scaleWhenAllAgree scales the target of an ElastiService that agrees to zero,
// when every other ElastiService of the target agrees too and all of them have
// just confirmed that it is idle. When one that does not agree changes, those that do are
// synced again: it may have no say now.
func (c *Controller) scaleWhenAllAgree(ctx context.Context, p *pass) error {
	siblings, err := c.siblings(ctx, p.elastiService)
	if err != nil {
		return err
	}
	targetKey, key := c.targetKeys.Of(p.elastiService), p.key()
	if !c.scaleDowns.allAgree(targetKey, siblings) {
		return nil
	}
	if !c.options.ConfirmIdle(targetKey, func() { c.queue.AddAfter(key, sharedPoll) }) {
		return nil
	}
	if !c.scaleDowns.begin(targetKey, siblings) {
		c.queue.AddAfter(key, sharedPoll)
		return nil
	}
	defer c.endScaling(p, targetKey)
	return c.scaleToZero(ctx, p, siblings)
}

// endScaling ends what scaleDowns.begin began, once the result is known: until then the
// resolvers and requests of all ElastiServices of the target stay.
func (c *Controller) endScaling(p *pass, target resources.TargetKey) {
	if p.state.completing == nil {
		c.scaleDowns.end(target, c.clock.Now())
	}
}

// scaleToZero scales the target, whose autoscaler is paused, to zero. The requests for sleep
// stay until that is done: a wake removes one of them meanwhile, and then the target is woken
// again; a controller that continues after a crash finds them. When a step fails, the steps
// before are undone, and only then the requests are removed, with which the resolvers leave
// the path.
//
// The cache of the resolver slices may be stale, so they are read last before the scaling.
//
// The scale is read first, and written with its resource version as precondition: a
// controller that stalls after its check, and does not lead any more, scales nothing that
// was woken meanwhile. When the scale is not that of the object that was checked, the check
// is repeated with the object as it is now.
func (c *Controller) scaleToZero(ctx context.Context, p *pass, agreed []types.NamespacedName) error {
	// A stall that is longer than this ends without a write.
	checked, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	scaleTarget := target.Of(p.elastiService)
	scale, err := c.scaling.Get(checked, scaleTarget)
	if err != nil {
		return c.giveUpScaleDown(ctx, p, err)
	}
	if scale.Spec.Replicas == 0 {
		// It is at zero already: the ElastiService is synced again when the watch shows
		// that.
		p.state.endScaleDown()
		return nil
	}
	if !p.target.IsAsIn(scale) {
		c.checkAgain(ctx, p)
		return nil
	}
	siblings, why, err := c.stillRequested(checked, p, agreed)
	if err != nil {
		return err
	}
	if why != "" {
		return c.cancelScaleDown(ctx, p, siblings, why)
	}
	exposed, err := c.withoutResolvers(checked, siblings)
	if err != nil {
		return err
	}
	if len(exposed) > 0 || !c.scaleDowns.allAgree(c.targetKeys.Of(p.elastiService), agreed) {
		c.drainAgain(ctx, p, exposed)
		return nil
	}
	err = c.scaling.ScaleToZero(checked, scaleTarget, scale)
	if apierrors.IsConflict(err) {
		c.checkAgain(ctx, p)
		return nil
	}
	if isRejected(err) {
		return c.giveUpScaleDown(ctx, p, err)
	}
	p.state.startCompletion(c.targetKeys.Of(p.elastiService), siblings)
	if err != nil {
		return c.resolveScaleDown(ctx, p, siblings, err)
	}
	return c.completeScaleDown(ctx, p, siblings)
}

// isRejected reports whether an error is the API server's rejection of a request, which
// it has not carried out.
func isRejected(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500
}

// errNotConfirmed means that a target was about to be scaled to zero, and a pass ended
// without it being known what came of that.
var errNotConfirmed = errors.New("it was not confirmed that it was scaled to zero")

// resolveScaleDown completes a scale-down whose scale request has an unknown result, such
// as after a lost connection, on which the watch of the target may be as well. It reads
// the scale; while that fails, the requests and the resolvers stay.
func (c *Controller) resolveScaleDown(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService, cause error) error {
	// The time for the checks may have ended.
	ctx, cancel := context.WithTimeout(ctx, scaleTimeout)
	defer cancel()
	scale, err := c.scaling.Get(ctx, target.Of(p.elastiService))
	switch {
	case apierrors.IsNotFound(err), err == nil && scale.Spec.Replicas > 0:
		p.state.endCompletion()
		return c.giveUpScaleDown(ctx, p, cause)
	case err != nil:
		return errors.Join(cause, err)
	}
	return c.completeScaleDown(ctx, p, siblings)
}

// checkAgain has a target, which was changed since it was observed, checked again before
// it is scaled to zero. The drain goes on meanwhile: a target that changes often would
// not get to its end otherwise. The ElastiService is synced again when the watch shows the
// change, or after recheckDelay where there is no watch.
func (c *Controller) checkAgain(ctx context.Context, p *pass) {
	klog.FromContext(ctx).V(2).Info("A target has changed since it was checked, and is checked again before it is scaled to zero", "elastiService", klog.KObj(p.elastiService))
	c.queue.AddAfter(p.key(), recheckDelay)
}

// withoutResolvers returns those of the ElastiServices whose Service has no resolvers in
// its path, according to the API server.
func (c *Controller) withoutResolvers(ctx context.Context, siblings []*v1alpha1.ElastiService) (exposed []*v1alpha1.ElastiService, err error) {
	for _, sibling := range siblings {
		inPath, err := c.hasResolvers(ctx, sibling)
		if err != nil {
			return nil, fmt.Errorf("reading whether resolvers are in the path of Service %q: %w", sibling.Spec.Service, err)
		}
		if !inPath {
			exposed = append(exposed, sibling)
		}
	}
	return exposed, nil
}

// hasResolvers reports whether the Service of an ElastiService has a resolver slice of
// each IP family that lists resolvers which are ready, with its proxy ports.
func (c *Controller) hasResolvers(ctx context.Context, elastiService *v1alpha1.ElastiService) (bool, error) {
	object, ok := c.services.in(elastiService.Namespace).Get(elastiService.Namespace, elastiService.Spec.Service)
	if !ok {
		return false, nil
	}
	for _, family := range resources.AddressTypes(object.(*corev1.Service)) {
		name := resources.ResolverSliceName(elastiService.Spec.Service, family, 0)
		slice, err := c.host.DiscoveryV1().EndpointSlices(elastiService.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		ready := slices.DeleteFunc(slices.Clone(slice.Endpoints), func(endpoint discoveryv1.Endpoint) bool { return !resources.IsReady(&endpoint) })
		if !c.isSliceOf(slice, elastiService) || !shareEndpoint(ready, c.resolvers.Ready(family)) ||
			!equality.Semantic.DeepEqual(slice.Ports, resources.SlicePorts(elastiService.Status.ProxyPorts)) {
			return false, nil
		}
	}
	return true, nil
}

// isSliceOf reports whether an EndpointSlice is a resolver slice that was made for the
// Service that an ElastiService names, and stays.
func (c *Controller) isSliceOf(slice *discoveryv1.EndpointSlice, elastiService *v1alpha1.ElastiService) bool {
	return c.options.Signer.Made(&slice.ObjectMeta) && slice.DeletionTimestamp.IsZero() &&
		slice.Labels[v1alpha1.LabelRole] == v1alpha1.RoleResolver &&
		v1alpha1.SliceServiceKey(slice) == resources.PublicServiceKey(elastiService) &&
		slices.Contains(resources.OwnerOf(&slice.ObjectMeta), resources.KeyOf(elastiService))
}

// drainAgain has the drain begin again for the exposed ElastiServices of a target that was
// about to be scaled to zero: the resolvers of their Services are not in the path.
func (c *Controller) drainAgain(ctx context.Context, p *pass, exposed []*v1alpha1.ElastiService) {
	p.state.endScaleDown()
	for _, sibling := range exposed {
		klog.FromContext(ctx).Info("A target is not scaled to zero: the resolver slice of a Service of it is missing or does not list the resolvers, and its drain begins again when it does", "elastiService", klog.KObj(sibling), "service", sibling.Spec.Service)
		c.event(sibling, corev1.EventTypeWarning, v1alpha1.ReasonResolverSliceMissing, actionSleep, "the target stays awake until the resolver slice of Service %q lists the resolvers with their ports again: when this is reported more than once, see that no other client writes the slice", sibling.Spec.Service)
		c.scaleDowns.lose(resources.KeyOf(sibling))
		c.enqueue(resources.KeyOf(sibling))
	}
	c.enqueue(p.key())
}

// completeScaleDown removes the requests for sleep of a target that was scaled to
// zero just now, or wakes it again if one was removed meanwhile. What decides is one
// read of all requests after the scaling. A request that is removed later is no
// reason to wake: a wake that removes it scales the target once more itself, and the
// scheduler removes it when it sees some of the requests removed here, and not yet
// the others.
func (c *Controller) completeScaleDown(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService) error {
	now := c.clock.Now()
	p.state.startTermination(now)
	c.scaleDowns.recordScaled(c.targetKeys.Of(p.elastiService), now)
	for _, sibling := range siblings {
		if state := c.ownState(p, sibling); state != nil && sibling.Status.SleepRequestedTime != nil {
			state.recordCarriedOut(sibling.Status.SleepRequestedTime.Time)
		}
	}
	minimum, err := c.wokenSince(ctx, p, siblings)
	if err != nil {
		// The next sync goes on with this.
		return err
	}
	p.state.endCompletion()
	p.state.endScaleDown()
	if minimum > 0 {
		return c.wakeAgain(ctx, p, siblings, minimum)
	}
	// The watch of the target may be behind: until it shows zero, the pods that
	// are about to terminate still look as if they could serve.
	p.state.recordScaledToZero(now)
	if err := c.removeSleepRequests(ctx, p, siblings); err != nil {
		return err
	}
	scaleTarget := target.Of(p.elastiService)
	klog.FromContext(ctx).V(2).Info("Scaled a target to zero", "elastiService", klog.KObj(p.elastiService))
	for _, sibling := range siblings {
		c.event(sibling, corev1.EventTypeNormal, v1alpha1.ReasonSlept, actionSleep, "scaled %s %s to 0", scaleTarget.Kind, scaleTarget.Name)
	}
	return nil
}

// wokenSince returns how many replicas the ElastiServices desire that were requested to
// sleep, and are not any more according to the storage. Zero means that all still are.
func (c *Controller) wokenSince(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService) (int32, error) {
	stored, err := c.storedSiblings(ctx, p.elastiService)
	if err != nil {
		return 0, err
	}
	var minimum int32
	for _, sibling := range siblings {
		stillRequested := slices.ContainsFunc(stored, func(other *v1alpha1.ElastiService) bool {
			return other.UID == sibling.UID && other.Status.SleepRequestedTime != nil
		})
		if !stillRequested {
			minimum = max(minimum, target.MinReplicas(sibling), 1)
		}
	}
	return minimum, nil
}

// ownState returns the state of the ElastiService of a pass, and nil for another one:
// that is for the worker that has it.
func (c *Controller) ownState(p *pass, elastiService *v1alpha1.ElastiService) *state {
	if elastiService.UID == p.elastiService.UID {
		return p.state
	}
	return nil
}

// cancelScaleDown takes back the requests for sleep of a target that is to stay up,
// and lets its autoscaler go on.
func (c *Controller) cancelScaleDown(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService, why string) error {
	p.state.endScaleDown()
	c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "the target stays awake: %s", why)
	err := ignoreNotFound(c.scaling.KeepAutoscalerAwake(ctx, p.elastiService.Namespace, scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler)))
	return errors.Join(err, c.removeSleepRequests(ctx, p, siblings))
}

func (c *Controller) removeSleepRequests(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService) error {
	var problems []error
	for _, sibling := range siblings {
		if sibling.Status.SleepRequestedTime != nil {
			_, err := c.removeAnySleepRequest(ctx, sibling, c.ownState(p, sibling))
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// giveUpScaleDown resumes the autoscaler, and then removes the requests for sleep.
// Where that fails, they stay, so that it is tried again. The cause is no problem of the
// resolvers, which Ready is about: what decides that the target sleeps reports it, and decides
// when the scale-down is tried again.
func (c *Controller) giveUpScaleDown(ctx context.Context, p *pass, cause error) error {
	p.state.endScaleDown()
	c.options.SleepFailed(c.targetKeys.Of(p.elastiService), cause.Error())
	c.event(p.elastiService, corev1.EventTypeWarning, v1alpha1.ReasonSleepFailed, actionSleep, "the target stays awake: %v", cause)
	autoscaler := scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler)
	// A pause that failed may have been made all the same. Where ending it is rejected, it is
	// tried again with each sync.
	if err := ignoreNotFound(c.scaling.KeepAutoscalerAwake(ctx, p.elastiService.Namespace, autoscaler)); err != nil && !isRejected(err) {
		return errors.Join(cause, err)
	}
	siblings, err := c.storedSiblings(ctx, p.elastiService)
	if err == nil {
		err = c.removeSleepRequests(ctx, p, siblings)
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	klog.FromContext(ctx).Error(cause, "Failed to scale a target to zero, it stays awake", "elastiService", klog.KObj(p.elastiService))
	return nil
}

// wakeAgain wakes a target that was requested to wake while it was scaled to zero, and
// removes the other requests for sleep. A wake that fails is owed until it succeeds.
func (c *Controller) wakeAgain(ctx context.Context, p *pass, siblings []*v1alpha1.ElastiService, minimum int32) error {
	result, err := c.scaling.Wake(ctx, target.Of(p.elastiService), scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler), minimum, false)
	switch key := c.targetKeys.Of(p.elastiService); {
	case apierrors.IsNotFound(err):
		// One that is made again is another one.
		p.state.oweWake(key, 0)
		return fmt.Errorf("waking the target, which was deleted: %w", err)
	case err != nil:
		p.state.oweWake(key, minimum)
		return fmt.Errorf("waking the target, which is needed again: %w", err)
	default:
		p.state.oweWake(key, 0)
	}
	problems := []error{c.removeSleepRequests(ctx, p, siblings)}
	for _, sibling := range siblings {
		if autoscaler := scaling.AutoscalerOf(sibling.Spec.Autoscaler); autoscaler != scaling.AutoscalerOf(p.elastiService.Spec.Autoscaler) {
			problems = append(problems, ignoreNotFound(c.scaling.KeepAutoscalerAwake(ctx, sibling.Namespace, autoscaler)))
		}
	}
	c.event(p.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonSleepCalledOff, actionSleep, "scaled %s %s to %d: it was woken while it was put to sleep", p.elastiService.Spec.ScaleTargetRef.Kind, p.elastiService.Spec.ScaleTargetRef.Name, result.Replicas)
	return errors.Join(problems...)
}

// wakeOwed tries again to wake a target that was to be woken while it was scaled to
// zero.
func (c *Controller) wakeOwed(ctx context.Context, p *pass, minimum int32) error {
	siblings, err := c.storedSiblings(ctx, p.elastiService)
	if err != nil {
		return err
	}
	return c.wakeAgain(ctx, p, siblings, minimum)
}

// stillRequested returns the ElastiServices of the target of a pass, and why it is not
// to sleep, according to the storage: empty if all of them agree and still
// request it. What the watch has may be a moment old.
func (c *Controller) stillRequested(ctx context.Context, p *pass, agreed []types.NamespacedName) (siblings []*v1alpha1.ElastiService, why string, err error) {
	siblings, err = c.storedSiblings(ctx, p.elastiService)
	if err != nil {
		return nil, "", err
	}
	found := false
	for _, sibling := range siblings {
		found = found || sibling.UID == p.elastiService.UID
		if !equality.Semantic.DeepEqual(sibling.Status.ManagedTarget, resources.ManagedTargetOf(sibling).Recorded()) {
			err = fmt.Errorf("the status of ElastiService %s does not record the target yet", sibling.Name)
		}
		switch {
		case !slices.Contains(agreed, resources.KeyOf(sibling)):
			why = fmt.Sprintf("ElastiService %s is new", sibling.Name)
		case !sibling.DeletionTimestamp.IsZero():
			why = fmt.Sprintf("ElastiService %s is being deleted", sibling.Name)
		case sibling.Status.SleepRequestedTime == nil:
			why = fmt.Sprintf("it is used through ElastiService %s", sibling.Name)
		case usedSince(sibling, c.clock.Now(), time.Time{}):
			why = fmt.Sprintf("there is traffic for ElastiService %s", sibling.Name)
		case forbiddenBecause(sibling, p.target.Object) != "":
			why = forbiddenBecause(sibling, p.target.Object)
		}
	}
	if !found {
		why = "its ElastiService is deleted"
	}
	if why != "" {
		return siblings, why, nil
	}
	return siblings, "", err
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
// whether it did. state is nil when another worker has the ElastiService.
func (c *Controller) updateSleepRequest(ctx context.Context, elastiService *v1alpha1.ElastiService, state *state, check func(stored *v1alpha1.ElastiService) error) (bool, error) {
	updated, err := c.options.Statuses.UpdateStatus(ctx, resources.KeyOf(elastiService), elastiService.UID, func(stored *v1alpha1.ElastiService) error {
		if err := check(stored); err != nil {
			return err
		}
		stored.Status.SleepRequestedTime, stored.Status.SleepRequestedBy = nil, ""
		return nil
	})
	if errors.Is(err, errChanged) || errors.Is(err, errNotRequested) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing the request for sleep: %w", err)
	}
	if state != nil {
		state.recordWrite(updated)
	}
	return true, nil
}
