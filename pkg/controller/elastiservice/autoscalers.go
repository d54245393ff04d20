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
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// pausePatience is how long a descent waits for an autoscaler to report that
// it is paused. One that does not, such as when its operator is down, does not
// keep the target awake.
const pausePatience = 10 * time.Second

// kedaConditionPaused is the type of the condition of a ScaledObject that says
// that KEDA has stopped to scale by it.
const kedaConditionPaused = "Paused"

// autoscalerResources are the resources of the types of autoscalers.
var autoscalerResources = map[v1alpha1.AutoscalerType]schema.GroupVersionResource{
	v1alpha1.AutoscalerKEDA: {Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"},
	v1alpha1.AutoscalerHPA:  {Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
}

// autoscalerKinds are the kinds of the types of autoscalers, for messages.
var autoscalerKinds = map[v1alpha1.AutoscalerType]string{
	v1alpha1.AutoscalerKEDA: "ScaledObject",
	v1alpha1.AutoscalerHPA:  "HorizontalPodAutoscaler",
}

// observedAutoscaler is what is kept of an autoscaler.
type observedAutoscaler struct {
	metav1.ObjectMeta
	// targetKind and targetName are what it scales.
	targetKind, targetName string
	// pausedByUs is true when a descent paused it.
	pausedByUs bool
	// paused is true when it says that it does not scale.
	paused bool
}

// keepAutoscaler is the transform for autoscalers.
func keepAutoscaler(object any) (any, error) {
	found, ok := object.(*unstructured.Unstructured)
	if !ok {
		return keepOwn[*observedAutoscaler](object)
	}
	kept := &observedAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       found.GetNamespace(),
			Name:            found.GetName(),
			UID:             found.GetUID(),
			ResourceVersion: found.GetResourceVersion(),
		},
		pausedByUs: scaling.IsPaused(found.GetAnnotations()),
	}
	kept.targetKind, _, _ = unstructured.NestedString(found.Object, "spec", "scaleTargetRef", "kind")
	kept.targetName, _, _ = unstructured.NestedString(found.Object, "spec", "scaleTargetRef", "name")
	conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
	for _, entry := range conditions {
		if condition, ok := entry.(map[string]any); ok && condition["type"] == kedaConditionPaused {
			kept.paused = condition["status"] == string(metav1.ConditionTrue)
		}
	}
	return kept, nil
}

// scales tells whether the autoscaler scales a target. Without a kind, a
// ScaledObject scales a Deployment.
func (a *observedAutoscaler) scales(ref v1alpha1.ScaleTargetRef) bool {
	kind := a.targetKind
	if kind == "" {
		kind = "Deployment"
	}
	singular := func(kind string) string { return strings.TrimSuffix(strings.ToLower(kind), "s") }
	return a.targetName == ref.Name && singular(kind) == singular(ref.Kind)
}

// autoscalerObservation is what is known of an autoscaler.
type autoscalerObservation struct {
	// autoscaler is nil when there is none, or when that is not known.
	autoscaler *observedAutoscaler
	// pending is true while the watch does not know the objects yet.
	pending bool
	// problem says why the autoscaler cannot be observed.
	problem error
}

// stopped tells whether an autoscaler that was paused has stopped, or whether
// that cannot be told.
func (o autoscalerObservation) stopped() bool {
	return o.problem != nil || o.autoscaler != nil && o.autoscaler.pausedByUs && o.autoscaler.paused
}

// autoscalerUse is what an ElastiService holds of its autoscaler.
type autoscalerUse struct {
	key    informers.Key
	handle *informers.Handle
}

// autoscalerWatches watches the autoscalers of the ElastiServices. Safe for
// concurrent use, but for one ElastiService at a time.
type autoscalerWatches struct {
	informers *informers.Manager
	dynamic   dynamic.Interface
	// scope is the namespace of the watch for the autoscalers of a namespace.
	scope func(namespace string) string
	// users returns the ElastiServices that name an autoscaler.
	users func(resource schema.GroupVersionResource, autoscaler types.NamespacedName) []types.NamespacedName
	// enqueue says that the autoscaler of an ElastiService may have changed.
	enqueue func(types.NamespacedName)

	mu   sync.Mutex
	uses map[types.NamespacedName]autoscalerUse
}

// observe returns what is known of the autoscaler of an ElastiService, and sees
// to it that the ElastiService is enqueued when that changes.
func (w *autoscalerWatches) observe(elastiService *v1alpha1.ElastiService) autoscalerObservation {
	key, spec := keyOf(elastiService), elastiService.Spec.Autoscaler
	if spec == nil {
		w.forget(key)
		return autoscalerObservation{}
	}
	resource, ok := autoscalerResources[spec.Type]
	if !ok {
		w.forget(key)
		return autoscalerObservation{problem: fmt.Errorf("autoscalers of the type %q are not known", spec.Type)}
	}
	handle, err := w.use(key, resource)
	switch {
	case err != nil:
		return autoscalerObservation{problem: err}
	case handle.Problem() != nil:
		return autoscalerObservation{problem: handle.Problem()}
	case !handle.HasSynced():
		return autoscalerObservation{pending: true}
	}
	object, ok := handle.Get(key.Namespace, spec.Name)
	if !ok {
		return autoscalerObservation{problem: notFoundError(resource, spec.Name)}
	}
	return autoscalerObservation{autoscaler: object.(*observedAutoscaler)}
}

func (w *autoscalerWatches) use(key types.NamespacedName, resource schema.GroupVersionResource) (*informers.Handle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	watched := informers.Key{Resource: resource, Namespace: w.scope(key.Namespace)}
	before, held := w.uses[key]
	if held && before.key == watched {
		return before.handle, nil
	}
	handle, err := w.informers.Acquire(w.source(watched))
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	if held {
		before.handle.Release()
	}
	w.uses[key] = autoscalerUse{key: watched, handle: handle}
	return handle, nil
}

// forget ends the watching for an ElastiService.
func (w *autoscalerWatches) forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if use, ok := w.uses[key]; ok {
		delete(w.uses, key)
		use.handle.Release()
	}
}

func (w *autoscalerWatches) source(key informers.Key) informers.Source {
	client := w.dynamic.Resource(key.Resource).Namespace(key.Namespace)
	return informers.Source{
		Key: key,
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
		Client:    w.dynamic,
		Example:   &unstructured.Unstructured{},
		Transform: keepAutoscaler,
		Changed: func(before, after any) {
			object := after
			if object == nil {
				object = before
			}
			changed := object.(*observedAutoscaler)
			for _, user := range w.users(key.Resource, types.NamespacedName{Namespace: changed.Namespace, Name: changed.Name}) {
				w.enqueue(user)
			}
		},
		Synced: func() { w.enqueueUsers(key) },
		Failed: func() { w.enqueueUsers(key) },
	}
}

func (w *autoscalerWatches) enqueueUsers(key informers.Key) {
	var affected []types.NamespacedName
	w.mu.Lock()
	for user, use := range w.uses {
		if use.key == key {
			affected = append(affected, user)
		}
	}
	w.mu.Unlock()
	for _, user := range affected {
		w.enqueue(user)
	}
}

// usersOfAutoscaler returns the ElastiServices that name an autoscaler.
func (c *Controller) usersOfAutoscaler(resource schema.GroupVersionResource, autoscaler types.NamespacedName) []types.NamespacedName {
	var users []types.NamespacedName
	for _, elastiService := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(autoscaler.Namespace), byAutoscaler, autoscaler) {
		if autoscalerResources[elastiService.Spec.Autoscaler.Type] == resource {
			users = append(users, keyOf(elastiService))
		}
	}
	return users
}

// judgeAutoscaler decides AutoscalerFound. It is nil without an autoscaler.
func judgeAutoscaler(spec *v1alpha1.AutoscalerSpec, ref v1alpha1.ScaleTargetRef, observation autoscalerObservation, before *metav1.Condition) *verdict {
	if spec == nil {
		return nil
	}
	var judged verdict
	kind := autoscalerKinds[spec.Type]
	switch err := observation.problem; {
	case observation.pending && before != nil:
		judged = verdict{before.Status, before.Reason, before.Message}
	case observation.pending:
		judged = unknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q has not been looked up yet", kind, spec.Name)
	case err == nil && !observation.autoscaler.scales(ref):
		judged = no(v1alpha1.ReasonOtherTarget, "%s %q scales %s %q, not the target: correct spec.autoscaler", kind, spec.Name, observation.autoscaler.targetKind, observation.autoscaler.targetName)
	case err == nil:
		judged = yes(v1alpha1.ReasonFound, "%s %q exists and scales the target", kind, spec.Name)
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		judged = no(v1alpha1.ReasonKindNotServed, "the cluster serves no %s: install it or remove spec.autoscaler; the target sleeps and wakes without it", kind)
	case apierrors.IsNotFound(err):
		judged = no(v1alpha1.ReasonNotFound, "%s %q does not exist: create it or correct spec.autoscaler; the target sleeps and wakes without it", kind, spec.Name)
	default:
		judged = unknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q cannot be read: %v", kind, spec.Name, err)
	}
	return &judged
}

// pauseAutoscaler pauses the autoscaler of a target that is about to be scaled
// to zero. It reports whether the autoscaler has stopped: KEDA may be in the
// middle of a decision to scale up, which would come after the scaling to zero.
// Its change brings the ElastiService back, or else the end of the patience.
func (c *Controller) pauseAutoscaler(ctx context.Context, v *view, memory *memory) (bool, error) {
	autoscaler := autoscalerOf(v.elastiService.Spec.Autoscaler)
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
	if v.autoscaler.stopped() || waited >= pausePatience {
		return true, nil
	}
	c.queue.AddAfter(keyOf(v.elastiService), pausePatience-waited)
	return false, nil
}

// resumeForgotten resumes an autoscaler that is paused for a sleep that did not
// come, or that ended without us: a wake came in the middle of the descent,
// this process ended there, or somebody scaled the target by hand. What is
// observed may be behind, so the scale is read.
func (c *Controller) resumeForgotten(ctx context.Context, v *view, memory *memory) error {
	observed := v.autoscaler.autoscaler
	descending := v.elastiService.Status.SleepRequestedTime != nil && !memory.descentSince.IsZero()
	if descending || v.target.scale == nil || v.target.atZero() {
		return nil
	}
	memory.pausing = time.Time{}
	if observed == nil || !observed.pausedByUs || v.rival != nil {
		return nil
	}
	target, autoscaler := targetOf(v.elastiService), autoscalerOf(v.elastiService.Spec.Autoscaler)
	scale, err := c.scaling.Get(ctx, target)
	if err != nil || scale.Spec.Replicas == 0 {
		return ignoreNotFound(err)
	}
	return ignoreNotFound(c.scaling.ResumeAutoscaler(ctx, target.Namespace, autoscaler))
}

// reportAutoscaler records an Event when AutoscalerFound starts to be false, or
// is false for another reason.
func (c *Controller) reportAutoscaler(elastiService *v1alpha1.ElastiService, after *metav1.Condition) {
	before := condition(elastiService, v1alpha1.ConditionAutoscalerFound)
	if after == nil || after.Status != metav1.ConditionFalse || (before != nil && before.Status == after.Status && before.Reason == after.Reason) {
		return
	}
	c.event(elastiService, corev1.EventTypeWarning, v1alpha1.AutoscalerReasonPrefix+after.Reason, actionReconcile, "%s", after.Message)
}
