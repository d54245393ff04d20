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

package target

import (
	"context"
	"fmt"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// kedaConditionPaused is the type of the condition of a ScaledObject that says
// that KEDA has stopped scaling by it.
const kedaConditionPaused = "Paused"

// AutoscalerKind returns the kind of a type of autoscaler, for messages. It is
// empty for a type that is not known.
func AutoscalerKind(of v1alpha1.AutoscalerType) string { return autoscalerKinds[of] }

// autoscalerKinds are the kinds of the types of autoscalers, for messages.
var autoscalerKinds = map[v1alpha1.AutoscalerType]string{
	v1alpha1.AutoscalerKEDA: "ScaledObject",
	v1alpha1.AutoscalerHPA:  "HorizontalPodAutoscaler",
}

// Autoscaler is the part of an autoscaler that the cache keeps.
type Autoscaler struct {
	metav1.ObjectMeta
	// TargetKind and TargetName are what it scales.
	TargetKind, TargetName string
	// PausedByController is true when a scale-down paused it.
	PausedByController bool
	// ScaleInPausedByController is true when it is kept from scaling in for an
	// awake target, NeedsScaleInPause when it undoes wakes otherwise.
	ScaleInPausedByController, NeedsScaleInPause bool
	// Paused is true when it says that it does not scale, at all or in one
	// direction.
	Paused bool
	// Scaler is the HorizontalPodAutoscaler through which it scales. Empty when
	// there is none.
	Scaler string
	// Findings say what of it is incompatible with scale to zero.
	Findings []compatibility.Finding
}

// keepAutoscaler returns the transform for autoscalers of a resource.
func keepAutoscaler(resource schema.GroupVersionResource) func(any) (any, error) {
	return func(object any) (any, error) {
		found, ok := object.(*unstructured.Unstructured)
		if !ok {
			return informers.AlreadyTransformed[*Autoscaler](object)
		}
		return autoscalerFrom(resource, found), nil
	}
}

func autoscalerFrom(resource schema.GroupVersionResource, found *unstructured.Unstructured) *Autoscaler {
	kept := &Autoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       found.GetNamespace(),
			Name:            found.GetName(),
			UID:             found.GetUID(),
			ResourceVersion: found.GetResourceVersion(),
		},
	}
	if resource == scaling.ScaledObjects {
		scaledObject := compatibility.ScaledObjectOf(found)
		kept.PausedByController, kept.ScaleInPausedByController = scaledObject.IsPaused(), scaledObject.IsScaleInPaused()
		kept.NeedsScaleInPause = scaledObject.NeedsScaleInPause()
		kept.Findings = compatibility.OfScaledObject(found.GetName(), scaledObject)
		kept.Scaler, _, _ = unstructured.NestedString(found.Object, "status", "hpaName")
	} else {
		kept.Findings = compatibility.OfAutoscaler(scaling.AutoscalerHPA, found)
	}
	kept.TargetKind, _, _ = unstructured.NestedString(found.Object, "spec", "scaleTargetRef", "kind")
	kept.TargetName, _, _ = unstructured.NestedString(found.Object, "spec", "scaleTargetRef", "name")
	conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
	for _, entry := range conditions {
		if condition, ok := entry.(map[string]any); ok && condition["type"] == kedaConditionPaused {
			kept.Paused = condition["status"] == string(metav1.ConditionTrue)
		}
	}
	return kept
}

// Scales reports whether the autoscaler scales a target. Without a kind, a
// ScaledObject scales a Deployment.
func (a *Autoscaler) Scales(ref v1alpha1.ScaleTargetRef) bool {
	kind := a.TargetKind
	if kind == "" {
		kind = "Deployment"
	}
	singular := func(kind string) string { return strings.TrimSuffix(strings.ToLower(kind), "s") }
	return a.TargetName == ref.Name && singular(kind) == singular(ref.Kind)
}

// AutoscalerObservation is the observed state of an autoscaler.
type AutoscalerObservation struct {
	// Autoscaler is nil when it does not exist, or when that is not known.
	Autoscaler *Autoscaler
	// Pending is true until the caches are synced.
	Pending bool
	// Problem says why the autoscaler cannot be observed.
	Problem error
}

// autoscalerUse is the watch of an ElastiService for its autoscaler.
type autoscalerUse struct {
	key    informers.Key
	handle *informers.Handle
}

// AutoscalerWatchesOptions configure AutoscalerWatches. All fields are required.
type AutoscalerWatchesOptions struct {
	// Informers and Dynamic watch the autoscalers.
	Informers *informers.Manager
	Dynamic   dynamic.Interface
	// Scope returns the namespace of the watch for the autoscalers of a
	// namespace.
	Scope func(namespace string) string
	// Users returns the ElastiServices that name an autoscaler.
	Users func(resource schema.GroupVersionResource, autoscaler types.NamespacedName) []types.NamespacedName
	// Enqueue is called when the autoscaler of an ElastiService may have changed.
	Enqueue func(types.NamespacedName)
}

// AutoscalerWatches watches the autoscalers of the ElastiServices. It is safe
// for concurrent use, but for a single ElastiService by one goroutine at a time.
type AutoscalerWatches struct {
	options AutoscalerWatchesOptions

	mu sync.Mutex
	// uses are the autoscalers of the ElastiServices. Forget removes an entry.
	uses map[types.NamespacedName]autoscalerUse
}

// NewAutoscalerWatches returns watches that watch nothing yet.
func NewAutoscalerWatches(options AutoscalerWatchesOptions) *AutoscalerWatches {
	return &AutoscalerWatches{options: options, uses: map[types.NamespacedName]autoscalerUse{}}
}

// Observe returns the observed state of the autoscaler of an ElastiService. The
// ElastiService is enqueued when that changes.
func (w *AutoscalerWatches) Observe(elastiService *v1alpha1.ElastiService) AutoscalerObservation {
	key, spec := resources.KeyOf(elastiService), elastiService.Spec.Autoscaler
	if spec == nil {
		w.Forget(key)
		return AutoscalerObservation{}
	}
	resource, ok := scaling.AutoscalerResource(string(spec.Type))
	if !ok {
		w.Forget(key)
		return AutoscalerObservation{Problem: fmt.Errorf("autoscalers of the type %q are not known", spec.Type)}
	}
	handle, err := w.use(key, resource)
	switch {
	case err != nil:
		return AutoscalerObservation{Problem: err}
	case handle.Problem() != nil:
		return AutoscalerObservation{Problem: handle.Problem()}
	case !handle.HasSynced():
		return AutoscalerObservation{Pending: true}
	}
	object, ok := handle.Get(key.Namespace, spec.Name)
	if !ok {
		return AutoscalerObservation{Problem: notFoundError(resource, spec.Name)}
	}
	return AutoscalerObservation{Autoscaler: object.(*Autoscaler)}
}

func (w *AutoscalerWatches) use(key types.NamespacedName, resource schema.GroupVersionResource) (*informers.Handle, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	watched := informers.Key{Resource: resource, Namespace: w.options.Scope(key.Namespace)}
	before, held := w.uses[key]
	if held && before.key == watched {
		return before.handle, nil
	}
	handle, err := w.options.Informers.Acquire(w.source(watched))
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	if held {
		before.handle.Release()
	}
	w.uses[key] = autoscalerUse{key: watched, handle: handle}
	return handle, nil
}

// Forget stops watching the autoscaler of an ElastiService.
func (w *AutoscalerWatches) Forget(key types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if use, ok := w.uses[key]; ok {
		delete(w.uses, key)
		use.handle.Release()
	}
}

func (w *AutoscalerWatches) source(key informers.Key) informers.Source {
	client := w.options.Dynamic.Resource(key.Resource).Namespace(key.Namespace)
	return informers.Source{
		Key: key,
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
		Client:    w.options.Dynamic,
		Example:   &unstructured.Unstructured{},
		Transform: keepAutoscaler(key.Resource),
		Changed: func(before, after any) {
			object := after
			if object == nil {
				object = before
			}
			for _, user := range w.options.Users(key.Resource, resources.KeyOf(object.(*Autoscaler))) {
				w.options.Enqueue(user)
			}
		},
		Synced: func() { w.enqueueUsers(key) },
		Failed: func() { w.enqueueUsers(key) },
	}
}

func (w *AutoscalerWatches) enqueueUsers(key informers.Key) {
	var affected []types.NamespacedName
	w.mu.Lock()
	for user, use := range w.uses {
		if use.key == key {
			affected = append(affected, user)
		}
	}
	w.mu.Unlock()
	for _, user := range affected {
		w.options.Enqueue(user)
	}
}
