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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// phase is one step of the reconciliation of an ElastiService.
type phase struct {
	// name is the name that doc.go gives the phase.
	name string
	run  func(ctx context.Context, p *pass)
}

// phases returns the phases of a reconciliation, in their order. doc.go says what
// each does and why it comes where it does.
func (c *Controller) phases() []phase {
	return []phase{
		{"finalizers", c.reconcileFinalizers},
		{"observe", c.reconcileObserved},
		{"ports of others", c.reconcilePortsOfOthers},
		{"removal", c.reconcileRemoval},
		{"previous targets", c.reconcilePreviousTargets},
		{"ports", c.reconcilePorts},
		{"private Service", c.reconcilePrivateService},
		{"port record", c.reconcilePortRecord},
		{"mode", c.reconcileMode},
		{"slices", c.reconcileSlices},
		{"scale-down", c.reconcileScaleDown},
		{"leftovers", c.reconcileLeftovers},
		{"missing resolvers", c.reconcileMissingResolvers},
		{"autoscaler", c.reconcileAutoscaler},
		{"availability", c.reconcileAvailability},
		{"status", c.reconcileStatus},
	}
}

// pass is one reconciliation of an ElastiService. The phases fill it in.
type pass struct {
	// elastiService is the ElastiService with all that the controller wrote or
	// is about to write.
	elastiService *v1alpha1.ElastiService
	state         *state

	// observed is set by the phase observe.
	observed
	// recordKept is set by the phase removal: the private Service that is kept without a
	// public one, as the record of a target that stays asleep.
	recordKept string
	// portsNotRecorded is set by the phases ports and port record. Nothing may
	// point at the proxy ports then.
	portsNotRecorded bool
	// previousAsleep is set by the phase previous targets: a target that was named
	// before may be asleep. The target that is named now is not put to sleep, as its
	// record would take the place of the other.
	previousAsleep bool
	// heldByOther is set by the phase previous targets: the resolvers in the path of the
	// Service stand in for the target of the ElastiService that had it before, which
	// may be asleep. They stay as they are until that is awake.
	heldByOther bool
	// leavesPrevious is set by the phase removal: the resolvers are in the path of the
	// Service that the ElastiService named before, and stay as they are until the target
	// is awake.
	leavesPrevious bool
	// unreachable is set by the phase private Service: there is none by which resolvers
	// could find the pods of the target, which is not put to sleep then.
	unreachable bool
	// portsMissing is set by the phase ports: there are ports of the Service without a
	// proxy port. Traffic to them would wake nothing, so the target is not put to sleep.
	portsMissing bool
	// scaleDown, desiredMode and why are set by the phase mode.
	scaleDown   scaleDownStep
	desiredMode v1alpha1.Mode
	why         string
	// availability is set by the phase availability. Nil while there is no target.
	availability *condition
	// pauseCanceled is set by the phase mode when a scale-down that paused the
	// autoscaler has ended.
	pauseCanceled bool
	// notAccepting is set by the phase slices: the IP families of the Service of which
	// resolvers are ready, and none accepts connections to its proxy ports.
	notAccepting []string
	// acceptanceUnknown is set by the phase slices: the IP families of which no resolver is
	// known to accept connections, and one may be found to later.
	acceptanceUnknown []string
	// allAccepting is set by the phase slices: every resolver that is listed accepts
	// connections, as far as is known, and no other one may follow soon.
	allAccepting bool
	// allFamilies is set by the phase slices: there is a resolver in the path for each
	// IP family of the Service.
	allFamilies bool

	result result
	// done ends the pass after the phase that sets it.
	done bool
}

func (p *pass) key() types.NamespacedName { return resources.KeyOf(p.elastiService) }

func (p *pass) end(err error) {
	p.result.err = err
	p.done = true
}

// manages reports whether the pass manages the traffic of the public Service:
// resolvers can be in its path, and their ports are recorded.
func (p *pass) manages() bool { return p.mayManage() && !p.portsNotRecorded }

// mayManage reports whether resolvers can be in the path of the public Service, and those
// that are there are not still needed for another ElastiService or Service.
func (p *pass) mayManage() bool { return p.managed() && !p.heldByOther && !p.leavesPrevious }

// result is what a pass led to.
type result struct {
	mode  v1alpha1.Mode
	ports []v1alpha1.ProxyPort
	// privateService is the name of the private Service that resolvers find pods
	// by, empty when there is none.
	privateService string
	// managedTarget is the target that is recorded, nil when there is none.
	managedTarget *resources.ManagedTarget
	// problems are for the user to solve, err is worth another attempt.
	problems []condition
	err      error
}

// failed records an error of a phase.
func (r *result) failed(err error) {
	if err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		// The ElastiService in a namespace that is deleted is about to be
		// deleted too: there is nothing to do until then.
		return
	}
	r.err = errors.Join(r.err, err)
	var nameTaken *resources.NameTakenError
	var notRestored *notRestoredError
	switch {
	case errors.As(err, &notRestored):
		r.problems = append(r.problems, conditionFalse(v1alpha1.ReasonTargetNotRestored, "%s", notRestored.Error()))
	case errors.As(err, &nameTaken):
		r.problems = append(r.problems, conditionFalse(v1alpha1.ReasonNameTaken, "%s", nameTaken.Error()))
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsInternalError(err):
		// An admission webhook rejects with any of these, or cannot be called.
		r.problems = append(r.problems, conditionFalse(v1alpha1.ReasonWriteFailed, "%v", err))
	}
}

// sync brings the cluster in line with one ElastiService.
func (c *Controller) sync(ctx context.Context, key types.NamespacedName) error {
	if !c.hasSynced(key.Namespace) && c.unsynced.add(c.scope(key.Namespace), key, c.hasSynced) {
		return c.syncUnsynced(ctx, key)
	}
	object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
	if !ok {
		return c.deleted(ctx, key)
	}
	elastiService := object.(*v1alpha1.ElastiService)
	c.deletions.exists(elastiService)
	started := c.clock.Now()
	err := c.reconcile(ctx, elastiService)
	c.metrics.reconciled(key, errorClass(err), c.clock.Since(started))
	return err
}

// reconcile runs the phases.
func (c *Controller) reconcile(ctx context.Context, watched *v1alpha1.ElastiService) error {
	state := c.states.of(resources.KeyOf(watched))
	state.recordExistence(watched.UID)
	p := &pass{elastiService: c.latest(watched, state), state: state}
	for _, phase := range c.phases() {
		phase.run(ctx, p)
		if p.done {
			break
		}
	}
	return p.result.err
}

// latest returns an ElastiService as it is after all that the controller wrote
// or is about to write.
func (c *Controller) latest(watched *v1alpha1.ElastiService, state *state) *v1alpha1.ElastiService {
	return c.statuses.WithPending(state.latest(watched))
}

// refresh replaces the ElastiService of a pass after a write.
func (c *Controller) refresh(p *pass) { p.elastiService = c.latest(p.elastiService, p.state) }

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func findCondition(elastiService *v1alpha1.ElastiService, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(elastiService.Status.Conditions, conditionType)
}
