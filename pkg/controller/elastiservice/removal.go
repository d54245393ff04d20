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

const (
	// endpointTimeout is how long the resolvers stay in the path, after the
	// target was woken, for a ready endpoint.
	endpointTimeout = 30 * time.Second
	// restoreTimeout is how long resuming the autoscaler of an awake target is retried,
	// and waking the target of a deleted namespace, whose deletion must not hang. The
	// resolvers leave the path after that. Waking any other target that may sleep is
	// retried without an end: no traffic would wake it without resolvers in its path.
	restoreTimeout = time.Minute
	// restoreReportDelay is after which time a target that cannot be woken is
	// reported.
	restoreReportDelay = 5 * time.Second
	// lostRetry is the pause between checks whether a store that had lost everything
	// knows an ElastiService again, and whether one that is damaged was deleted.
	lostRetry = 30 * time.Second
)

// restoration is a target that is not managed any more and what is needed to
// wake it.
type restoration struct {
	target      scaling.Target
	autoscaler  scaling.Autoscaler
	minReplicas int32
	// managed is true when the autoscaler is still managed for another
	// ElastiService.
	managed bool
	// regarding is the object that Events are about. Nil for the target.
	regarding *corev1.ObjectReference
}

// about returns the object that Events are about. uid is that of the target, empty when it
// is not known.
func (r restoration) about(uid types.UID) *corev1.ObjectReference {
	if r.regarding != nil {
		return r.regarding
	}
	return target.ReferenceTo(r.target, uid)
}

// sameAs reports whether two restorations are of the same target and autoscaler.
func (r restoration) sameAs(other restoration) bool {
	return r.target == other.target && r.autoscaler == other.autoscaler
}

// restorationOf returns what it takes to wake the target of an ElastiService.
func restorationOf(elastiService *v1alpha1.ElastiService) restoration {
	return restoration{
		target:      target.Of(elastiService),
		autoscaler:  scaling.AutoscalerOf(elastiService.Spec.Autoscaler),
		minReplicas: target.MinReplicas(elastiService),
		regarding:   v1alpha1.ReferenceTo(elastiService),
	}
}

// restorationFrom returns what it takes to wake a target that is recorded.
func restorationFrom(namespace string, managed *resources.ManagedTarget, regarding *corev1.ObjectReference) restoration {
	return restoration{
		target:      scaling.TargetOf(namespace, managed.Target),
		autoscaler:  scaling.AutoscalerOf(managed.Autoscaler),
		minReplicas: managed.MinReplicas(),
		regarding:   regarding,
	}
}

// removeResolvers takes the resolvers out of the path and reports whether they and the
// private Service are deleted. It alone enforces that no target is at zero without
// resolvers: it wakes the target, waits for a ready endpoint, then removes. since is when
// the removal was first requested. If the target cannot be woken, the resolvers stay, and
// after restoreReportDelay the error is a notRestoredError. Without restorations there is
// no target to wake.
func (c *Controller) removeResolvers(ctx context.Context, p *pass, since time.Time, restorations ...restoration) (bool, error) {
	if removable, err := c.restoreBeforeRemoval(ctx, p, since, restorations); err != nil || !removable {
		return false, errors.Join(err, c.followResolvers(ctx, p))
	}
	return c.removeOwned(ctx, p)
}

// followResolvers has the resolver slices that stay in the path of a Service list the
// resolvers that are ready now. A target may have to wait long until it is woken:
// resolvers are replaced meanwhile, and other pods may get their addresses.
func (c *Controller) followResolvers(ctx context.Context, p *pass) error {
	var problems []error
	for _, slice := range p.ownSlices {
		if !slice.managed() {
			continue
		}
		ready := c.resolvers.Ready(slice.family)
		problems = append(problems, c.replaceResolvers(ctx, slice.slice, ready[:min(len(ready), resources.MaxEndpoints)]))
	}
	return errors.Join(problems...)
}

// replaceResolvers updates the endpoints of a resolver slice. It does not sign the slice,
// the rest of which may be user input.
func (c *Controller) replaceResolvers(ctx context.Context, slice *discoveryv1.EndpointSlice, endpoints []discoveryv1.Endpoint) error {
	if equality.Semantic.DeepEqual(slice.Endpoints, endpoints) {
		return nil
	}
	updated := slice.DeepCopy()
	updated.Endpoints = endpoints
	if _, err := c.host.DiscoveryV1().EndpointSlices(updated.Namespace).Update(ctx, updated, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("updating the resolvers of resolver slice %q: %w", updated.Name, err)
	}
	return nil
}

// restoreBeforeRemoval wakes the targets that resolvers stand in for, and reports whether
// the resolvers may leave the path.
func (c *Controller) restoreBeforeRemoval(ctx context.Context, p *pass, since time.Time, restorations []restoration) (bool, error) {
	if !c.leaveScaleDown(p) {
		return false, nil
	}
	now := c.clock.Now()
	elapsed := now.Sub(since)
	key := p.key()
	awake := false
	// With one target, a ready endpoint says something where its scale cannot be read.
	evidentlyAwake := len(restorations) == 1 && p.readyEndpoints > 0
	for _, restoration := range restorations {
		restored, err := c.restoreOrReport(ctx, key, restoration, elapsed, evidentlyAwake)
		if err != nil {
			return false, err
		}
		awake = awake || restored
	}
	if awake && p.service != nil && len(p.ownSlices) > 0 && p.readyEndpoints == 0 {
		// Held traffic must not be cut off. The ElastiService is synced again when an
		// endpoint changes, or endpointTimeout after the wake.
		if left := endpointTimeout - now.Sub(p.state.recordRestored(now)); left > 0 {
			c.queue.AddAfter(key, left)
			return false, nil
		}
	}
	return true, nil
}

// notRestoredError means that a target that is not managed any more may sleep and
// cannot be woken.
type notRestoredError struct {
	target scaling.Target
	err    error
}

// Error says what to do about it.
func (e *notRestoredError) Error() string {
	return fmt.Sprintf("%s %s is not managed any more, may be without replicas, and cannot be woken: scale it by hand, or fix the error below; elasti-apiserver keeps retrying: %v", e.target.Kind, e.target.Name, e.err)
}

// Unwrap returns the error of the last attempt.
func (e *notRestoredError) Unwrap() error { return e.err }

// restoreOrReport wakes a target before its resolvers are removed, and reports it where
// that fails for too long. The result is true when the target exists and is awake, or is
// about to be. Other ElastiServices with the same target may have it scaled down again
// later. evidentlyAwake is true when a pod of the target is ready, which counts where its
// scale cannot be read.
func (c *Controller) restoreOrReport(ctx context.Context, key types.NamespacedName, restoration restoration, elapsed time.Duration, evidentlyAwake bool) (bool, error) {
	restoration.managed = c.autoscalerIsManagedByOthers(key, restoration)
	state, err := c.restoreTarget(ctx, restoration)
	switch {
	case err == nil:
		return state == restoredAwake, nil
	case elapsed < restoreReportDelay:
		return false, err
	case mayBeAsleep(state, evidentlyAwake) && (elapsed < restoreTimeout || !c.isNamespaceDeleted(ctx, key.Namespace)):
		problem := &notRestoredError{restoration.target, err}
		c.eventAbout(restoration.about(""), corev1.EventTypeWarning, v1alpha1.ReasonTargetNotRestored, actionFinalize, "%v", problem)
		return false, problem
	case elapsed < restoreTimeout:
		return false, err
	default:
		klog.FromContext(ctx).Error(err, "Failed to restore the target and its autoscaler, will remove the resolvers anyway", "elastiService", key, "target", restoration.target)
		c.eventAbout(restoration.about(""), corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, actionFinalize, "the autoscaler of %s %s may still be paused: %v", restoration.target.Kind, restoration.target.Name, err)
		return state == restoredAwake, nil
	}
}

// mayBeAsleep reports whether a target that could not be woken may be at zero.
// evidentlyAwake counts only where the scale could not be read: the ready pod may be that
// of another workload which the Service selects too.
func mayBeAsleep(state restored, evidentlyAwake bool) bool {
	return state == restoredAsleep || state == restoredUnknown && !evidentlyAwake
}

// isNamespaceDeleted reports whether a namespace is deleted, with everything in it.
func (c *Controller) isNamespaceDeleted(ctx context.Context, name string) bool {
	namespace, err := c.host.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && !namespace.DeletionTimestamp.IsZero()
}

// restored says what is known of a target that was to be woken.
type restored int

const (
	// restoredUnknown: its scale cannot be read, it may be asleep.
	restoredUnknown restored = iota
	// restoredAsleep: it is at zero and cannot be woken.
	restoredAsleep
	// restoredAwake: it has replicas.
	restoredAwake
	// restoredMissing: it does not exist.
	restoredMissing
)

// restoreTarget wakes a target that is not managed any more, and resumes its
// autoscaler. A managed target that is at zero counts as asleep, whatever
// scaled it: traffic would have woken it, and will not any more. There is nothing to
// do for one that does not exist. The error may be one of the autoscaler alone.
func (c *Controller) restoreTarget(ctx context.Context, restoration restoration) (restored, error) {
	scaleTarget, autoscaler := restoration.target, restoration.autoscaler
	scale, err := c.scaling.Get(ctx, scaleTarget)
	switch {
	case apierrors.IsNotFound(err):
		return restoredMissing, c.releaseAutoscaler(ctx, restoration)
	case err != nil:
		return restoredUnknown, errors.Join(err, c.releaseAutoscaler(ctx, restoration))
	case scale.Spec.Replicas > 0:
		return restoredAwake, c.releaseAutoscaler(ctx, restoration)
	}
	var result scaling.Result
	if restoration.managed {
		result, err = c.scaling.Wake(ctx, scaleTarget, autoscaler, restoration.minReplicas, false)
	} else {
		result, err = c.scaling.Restore(ctx, scaleTarget, autoscaler, restoration.minReplicas)
	}
	switch {
	case apierrors.IsNotFound(err):
		return restoredMissing, nil
	case err != nil:
		return restoredAsleep, err
	}
	if result.Scaled {
		c.options.Woken(c.targetKeyOf(scaleTarget), "one of its Services is no longer managed")
		c.eventAbout(restoration.about(scale.UID), corev1.EventTypeNormal, v1alpha1.ReasonTargetRestored, actionFinalize, "scaled %s %s to %d: it is not managed any more", scaleTarget.Kind, scaleTarget.Name, result.Replicas)
	}
	autoscalerError := ignoreNotFound(result.AutoscalerError)
	if autoscalerError != nil {
		c.eventAbout(restoration.about(scale.UID), corev1.EventTypeWarning, v1alpha1.ReasonAutoscalerNotResumed, actionFinalize, "%v", autoscalerError)
	}
	// It is resumed by another attempt, which finds the target awake.
	return restoredAwake, autoscalerError
}

// releaseAutoscaler leaves an autoscaler as the user had set it, unless it is still
// managed.
func (c *Controller) releaseAutoscaler(ctx context.Context, restoration restoration) error {
	if restoration.managed {
		return nil
	}
	return ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, restoration.target.Namespace, restoration.autoscaler))
}

// autoscalerIsManagedByOthers reports whether another ElastiService, one that stays,
// names the autoscaler of a target.
func (c *Controller) autoscalerIsManagedByOthers(key types.NamespacedName, restoration restoration) bool {
	resource, ok := scaling.AutoscalerResource(restoration.autoscaler.Type)
	if !ok {
		return false
	}
	autoscaler := resources.AutoscalerKey(restoration.target.Namespace, restoration.autoscaler.Name)
	return slices.ContainsFunc(c.usersOfAutoscaler(resource, autoscaler), func(user types.NamespacedName) bool {
		object, ok := c.elastiServices.in(user.Namespace).Get(user.Namespace, user.Name)
		return user != key && ok && object.(*v1alpha1.ElastiService).DeletionTimestamp.IsZero()
	})
}

// reconcileRemoval is the phase removal. It takes the resolvers out of the path of
// a Service that they cannot stand in for any more, or that the ElastiService does not
// name any more. Until that is done resolvers still forward what they hold, so the ports
// and the private Service stay.
func (c *Controller) reconcileRemoval(ctx context.Context, p *pass) {
	served, moved := c.servedByResolvers(p)
	switch {
	case !p.managed():
		done, err := c.leaveUnsupportedService(ctx, p, served, moved)
		p.result.failed(err)
		if done {
			c.ports.Release(p.key())
			return
		}
	case moved:
		p.result.failed(c.leavePreviousService(ctx, p, served))
	default:
		p.state.endRemoval()
		return
	}
	p.result.ports, p.result.privateService = p.elastiService.Status.ProxyPorts, p.elastiService.Status.PrivateService
	p.result.mode = p.observedMode()
}

// leavePreviousService removes the resolvers of the Service that an ElastiService named
// before. It still selects the pods, and its clients wait at the resolvers, so the target
// is woken as for a deletion. What the ElastiService names now is managed from the next
// sync on.
func (c *Controller) leavePreviousService(ctx context.Context, p, served *pass) error {
	p.leavesPrevious = true
	p.result.managedTarget = recordedTarget(p)
	since, _ := p.state.startRemoval(c.clock.Now())
	restorations := c.previousRestorations(p)
	if c.isRecorded(p) {
		restorations = append(restorations, c.currentRestorations(p)...)
	}
	done, err := c.removeResolvers(ctx, served, since, restorations...)
	if done {
		c.enqueue(p.key())
	}
	return err
}

// leaveUnsupportedService removes the resolvers of a Service that they cannot stand in
// for any more. It reports whether nothing is left of them. A target whose Service is
// deleted stays asleep, as no client can call it, and recorded: it is woken when the
// ElastiService names another target or is deleted. Its private Service stays as long:
// the status is the only other record, and an uninstallation may not be able to read
// it.
func (c *Controller) leaveUnsupportedService(ctx context.Context, p, served *pass, moved bool) (bool, error) {
	restorations := c.previousRestorations(p)
	staysAsleep := p.service == nil && !moved
	if !staysAsleep && (c.isRecorded(p) || len(p.ownSlices) > 0) {
		restorations = append(restorations, c.currentRestorations(p)...)
	}
	if awake := p.target.Scale != nil && !p.target.AtZero(); staysAsleep && !awake {
		p.recordKept = c.recordingService(p)
	}
	if len(restorations) > 0 || len(p.ownSlices) > 0 || len(p.unneededServices(p.recordKept)) > 0 {
		since, _ := p.state.startRemoval(c.clock.Now())
		p.result.managedTarget = recordedTarget(p)
		if done, err := c.removeResolvers(ctx, served, since, restorations...); err != nil || !done {
			return false, err
		}
	}
	p.state.endRemoval()
	p.result.managedTarget = nil
	if staysAsleep && c.isRecorded(p) {
		p.result.managedTarget = resources.ManagedTargetOf(p.elastiService)
	}
	return true, nil
}

// recordingService returns the name of a private Service that records the target that
// the ElastiService names, empty when none does.
func (c *Controller) recordingService(p *pass) string {
	current := restorationOf(p.elastiService)
	for _, private := range p.ownServices {
		managed := resources.ManagedTargetIn(&private.ObjectMeta)
		if managed != nil && c.sameTarget(restorationFrom(private.Namespace, managed, nil).target, current.target) {
			return private.Name
		}
	}
	return ""
}

// deleted cleans up after an ElastiService that does not exist any more. What was
// made for it was deleted before its finalizer, unless that was removed by hand
// or the store was replaced by one without it: then its target is woken first.
func (c *Controller) deleted(ctx context.Context, key types.NamespacedName) error {
	c.targets.Forget(key)
	c.autoscalers.Forget(key)
	c.inspector.Forget(key)
	c.polls.leave(key)
	c.statuses.Forget(key)
	c.failedStarts.remove(key)
	c.metrics.forget(key)
	last := c.deletions.last(key)
	p := c.orphans(key, last)
	left := len(p.ownServices) > 0 || len(p.ownSlices) > 0 || len(recordedTargets(p)) > 0
	if !left && !p.state.damaged {
		c.forgetOrphan(p)
		return nil
	}
	if err := c.leavePortsOfOthers(ctx, p); err != nil {
		return err
	}
	_, err := c.elasti.ElastiV1alpha1().ElastiServices(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsStoreReadError(err) {
		return c.leaveDamaged(ctx, p, err)
	}
	// The cache may be stale, and an empty store is no proof of a deletion. Only NotFound
	// counts, from a store that has not lost everything.
	lost, problem := c.mayBeLost(ctx, p, last)
	switch {
	case problem != nil:
		return problem
	case lost:
		if p.state.recordLoss() {
			klog.FromContext(ctx).Info("Keeping the objects of an ElastiService that does not exist: the store has no ElastiService at all", "elastiService", key, "retryIn", lostRetry)
		}
		c.wakeQueue.remove(key)
		c.queue.AddAfter(key, lostRetry)
		return c.followResolvers(ctx, p)
	case !apierrors.IsNotFound(err):
		return err
	case !left:
		c.forgetOrphan(p)
		return nil
	default:
		return c.removeOrphans(ctx, p, last)
	}
}

// forgetOrphan drops what is kept of an ElastiService that does not exist, and of which
// nothing is left.
func (c *Controller) forgetOrphan(p *pass) {
	if finalized := p.state.finalized; finalized != "" && !c.deletions.reported(p.key(), finalized) {
		// Its deletion is about to be reported. The state is needed until then: it
		// shows that there is nothing to wake.
		return
	}
	c.leaveScaleDown(p)
	c.forget(p.key())
}

// leaveDamaged wakes the target of an ElastiService whose stored object is damaged, and has
// its resolvers leave then. Neither the watch nor any resolver that starts has the
// ElastiService, so that nothing else would wake the target. What is recorded beside the
// stored object says how. Without a record everything stays as it is, and the claims of the
// proxy ports stay in any case: when the object is repaired, the rest is made again.
func (c *Controller) leaveDamaged(ctx context.Context, p *pass, damage error) error {
	regarding := orphanReference(p)
	if p.state.recordDamage() {
		klog.FromContext(ctx).Error(damage, "The stored object of an ElastiService is damaged: its target is woken, then its resolvers leave", "elastiService", p.key())
		if regarding != nil {
			c.eventAbout(regarding, corev1.EventTypeWarning, v1alpha1.ReasonStoredObjectDamaged, actionFinalize, "ElastiService %s cannot be read, so that its target is woken and its resolvers leave: %s", p.elastiService.Name, bounded(damage.Error()))
		}
	}
	// No watch reports that it is deleted.
	c.queue.AddAfter(p.key(), lostRetry)
	if p.state.damageHandled {
		// The target is the user's.
		return nil
	}
	restorations := recordedRestorations(p, regarding)
	if len(restorations) == 0 || !c.mayRestore(p, restorations) {
		return c.followResolvers(ctx, p)
	}
	since, _ := p.state.startRemoval(c.clock.Now())
	done, err := c.removeResolvers(ctx, p, since, restorations...)
	if done {
		c.wakeQueue.remove(p.key())
		p.state.recordDamageHandled()
	}
	return err
}

// removeOrphans removes what is left of an ElastiService that does not exist, and drops what
// is kept of it once that is done. last is the ElastiService whose deletion was reported, nil
// if none was.
func (c *Controller) removeOrphans(ctx context.Context, p *pass, last *v1alpha1.ElastiService) error {
	key := p.key()
	// An ElastiService that was finalized has nothing to wake. Its objects are being
	// deleted; the watch triggers the next sync.
	cleanedUp := p.state.cleanedUp(last)
	var restorations []restoration
	if !cleanedUp {
		restorations = recordedRestorations(p, orphanReference(p))
	}
	if !c.mayRestore(p, restorations) {
		return c.followResolvers(ctx, p)
	}
	since, started := p.state.startRemoval(c.clock.Now())
	if started && !cleanedUp {
		klog.FromContext(ctx).Info("An ElastiService was deleted without having been cleaned up: its target is woken, then its resolvers leave", "elastiService", key)
	}
	if len(restorations) == 0 && !cleanedUp {
		klog.FromContext(ctx).Info("Nothing records the target of a deleted ElastiService: scale it by hand if it has no replicas", "elastiService", key)
	}
	done, err := c.removeResolvers(ctx, p, since, restorations...)
	if err != nil || !done || cleanedUp {
		return err
	}
	c.forget(key)
	return nil
}

// mayBeLost reports whether the storage may have lost everything instead of deleting
// the ElastiService of a pass, which does not exist. last is the ElastiService whose
// deletion was reported, nil if none was. A storage that knows others has deleted it,
// and so has one that has the claims of its proxy ports.
func (c *Controller) mayBeLost(ctx context.Context, p *pass, last *v1alpha1.ElastiService) (bool, error) {
	if last != nil || p.state.removing() || !c.hasNoElastiServices() {
		return false, nil
	}
	claims, err := c.options.Claims.List(ctx)
	if err != nil {
		return false, fmt.Errorf("finding claims of a deleted ElastiService: %w", err)
	}
	return !slices.ContainsFunc(claims, func(claim v1alpha1.ProxyPortClaimSpec) bool {
		return claim.Owner.Namespace == p.key().Namespace && claim.Owner.Name == p.key().Name
	}), nil
}

// forget drops all that is kept of an ElastiService that does not exist.
func (c *Controller) forget(key types.NamespacedName) {
	c.ports.Release(key)
	c.wakeQueue.remove(key)
	c.states.forget(key)
	c.deletions.forget(key)
}

// orphanReference returns what Events about a deleted ElastiService are about: its public
// Service. It is nil, for the target, when there is none: what is left of the ElastiService
// is about to be deleted.
func orphanReference(p *pass) *corev1.ObjectReference {
	if p.service == nil {
		return nil
	}
	return resources.ServiceReference(p.service)
}
