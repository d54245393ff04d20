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

package scaling

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// KEDA's documented annotations for pausing a ScaledObject.
const (
	// KEDAPaused stops scaling, at whatever number of replicas there is.
	KEDAPaused = "autoscaling.keda.sh/paused"
	// KEDAPausedReplicas pins the target to a number of replicas.
	KEDAPausedReplicas = "autoscaling.keda.sh/paused-replicas"
	// KEDAPausedScaleIn stops scaling in, to zero and above. KEDA before 2.18
	// does not know it.
	KEDAPausedScaleIn = "autoscaling.keda.sh/paused-scale-in"
)

// kubeElastiManager is the field manager of what KubeElasti writes.
const kubeElastiManager = "manager"

// ScaledObject is what the product reads of a ScaledObject of KEDA.
type ScaledObject struct {
	// ObjectMeta has at least the annotations, and the managed fields where
	// pauses are undone.
	metav1.ObjectMeta `json:"metadata"`
	// Spec holds what decides whether KEDA scales to zero.
	Spec ScaledObjectSpec `json:"spec"`
}

// ScaledObjectSpec is a part of the spec of a ScaledObject.
type ScaledObjectSpec struct {
	// MinReplicaCount is the least number of replicas. Defaults to 0.
	MinReplicaCount *int32 `json:"minReplicaCount,omitempty"`
	// IdleReplicaCount is the number of replicas while no trigger is active,
	// below MinReplicaCount. Defaults to MinReplicaCount.
	IdleReplicaCount *int32 `json:"idleReplicaCount,omitempty"`
}

// ScalesToZero reports whether KEDA scales the target to zero while no trigger
// is active and nothing pauses it.
func (o *ScaledObject) ScalesToZero() bool {
	idle := o.Spec.IdleReplicaCount
	if idle == nil {
		idle = o.Spec.MinReplicaCount
	}
	return idle == nil || *idle == 0
}

// PinnedToZero reports whether the user, and not this product, pins the target
// to zero replicas.
func (o *ScaledObject) PinnedToZero() bool {
	annotations, err := withoutPause(o)
	if err != nil {
		return false
	}
	replicas, err := strconv.Atoi(annotations[KEDAPausedReplicas])
	return err == nil && replicas == 0
}

// IsPaused reports whether PauseAutoscaler paused it.
func (o *ScaledObject) IsPaused() bool {
	_, ok := o.Annotations[v1alpha1.AnnotationPausedAnnotations]
	return ok
}

// IsScaleInPaused reports whether PauseScaleIn, or a wake, keeps it from
// scaling in.
func (o *ScaledObject) IsScaleInPaused() bool {
	_, ok := o.Annotations[v1alpha1.AnnotationPausedScaleIn]
	return ok
}

// NeedsScaleInPause reports whether KEDA undoes a wake unless it is kept from
// scaling in: it scales to zero, and the user has not paused it in a way that
// prevents that.
func (o *ScaledObject) NeedsScaleInPause() bool {
	if !o.ScalesToZero() {
		return false
	}
	annotations, err := withoutAny(o)
	if err != nil {
		return false
	}
	_, pinned := annotations[KEDAPausedReplicas]
	return !pinned && !isTrue(annotations, KEDAPaused) && !isTrue(annotations, KEDAPausedScaleIn)
}

// isTrue reads an annotation as KEDA does.
func isTrue(annotations map[string]string, key string) bool {
	text, ok := annotations[key]
	if !ok {
		return false
	}
	value, err := strconv.ParseBool(text)
	return err != nil || value
}

// pauseScaledObject pauses a ScaledObject at the replicas that it has. A
// number of replicas that the user had pinned it to is put aside.
func (c *Client) pauseScaledObject(ctx context.Context, namespace, name string) error {
	return c.annotateScaledObject(ctx, namespace, name, "pausing", false, asleep)
}

// resumeScaledObject undoes every pause of this product.
func (c *Client) resumeScaledObject(ctx context.Context, namespace, name string, dryRun bool) error {
	return c.annotateScaledObject(ctx, namespace, name, "resuming", dryRun, withoutAny)
}

// keepScaledObjectAwake undoes pauseScaledObject, and keeps a ScaledObject that
// scales to zero from scaling in.
func (c *Client) keepScaledObjectAwake(ctx context.Context, namespace, name string, dryRun bool) error {
	return c.annotateScaledObject(ctx, namespace, name, "resuming", dryRun, keptAwake)
}

// asleep returns the annotations of a ScaledObject whose target sleeps.
func asleep(object *ScaledObject) (map[string]string, error) {
	if object.IsPaused() {
		return object.Annotations, nil
	}
	current, err := withoutAny(object)
	if err != nil {
		return nil, err
	}
	return pauseBy(current, v1alpha1.AnnotationPausedAnnotations, KEDAPaused, KEDAPausedReplicas)
}

// keptAwake returns the annotations of a ScaledObject whose target is awake.
func keptAwake(object *ScaledObject) (map[string]string, error) {
	current, err := withoutAny(object)
	if err != nil || !object.NeedsScaleInPause() {
		return current, err
	}
	return pauseBy(current, v1alpha1.AnnotationPausedScaleIn, KEDAPausedScaleIn)
}

// withoutAny returns the annotations of a ScaledObject without the pauses of
// this product.
func withoutAny(object *ScaledObject) (map[string]string, error) {
	current, err := withoutPause(object)
	if err != nil {
		return nil, err
	}
	return restored(current, v1alpha1.AnnotationPausedScaleIn, KEDAPausedScaleIn)
}

// withoutPause returns the annotations of a ScaledObject as they were before
// PauseAutoscaler.
func withoutPause(object *ScaledObject) (map[string]string, error) {
	if !object.IsPaused() && pausedByKubeElasti(object) {
		rest := maps.Clone(object.Annotations)
		delete(rest, KEDAPaused)
		delete(rest, KEDAPausedReplicas)
		return rest, nil
	}
	return restored(object.Annotations, v1alpha1.AnnotationPausedAnnotations, KEDAPaused, KEDAPausedReplicas)
}

// pauseBy returns annotations in which the first of keys, a pause, is true, the
// others are absent, and the annotation record holds what they were before.
func pauseBy(current map[string]string, record string, keys ...string) (map[string]string, error) {
	before := map[string]string{}
	paused := maps.Clone(current)
	if paused == nil {
		paused = map[string]string{}
	}
	for _, key := range keys {
		if value, ok := current[key]; ok {
			before[key] = value
		}
		delete(paused, key)
	}
	recorded, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encoding the annotations that the user had set: %w", err)
	}
	paused[keys[0]] = "true"
	paused[record] = string(recorded)
	return paused, nil
}

// restored undoes pauseBy. What the user has changed since stays as it is.
func restored(current map[string]string, record string, keys ...string) (map[string]string, error) {
	recorded, ok := current[record]
	if !ok {
		return current, nil
	}
	before := map[string]string{}
	if err := json.Unmarshal([]byte(recorded), &before); err != nil {
		return nil, fmt.Errorf("annotation %s holds %q, which is not a JSON object of annotations: remove it and the annotation %s by hand: %w", record, recorded, keys[0], err)
	}
	rest := maps.Clone(current)
	delete(rest, record)
	for i, key := range keys {
		value, isSet := rest[key]
		unchanged := !isSet
		if i == 0 {
			unchanged = value == "true"
		}
		if !unchanged {
			continue
		}
		delete(rest, key)
		if value, ok := before[key]; ok {
			rest[key] = value
		}
	}
	return rest, nil
}

// pausedByKubeElasti reports whether KubeElasti put the target to sleep. It writes
// this pair of annotations, which would keep the target from waking. Only the field
// manager distinguishes them from a pause of the user.
func pausedByKubeElasti(object *ScaledObject) bool {
	return object.Annotations[KEDAPaused] == "true" && object.Annotations[KEDAPausedReplicas] == "0" &&
		annotatedBy(object, KEDAPausedReplicas) == kubeElastiManager
}

// annotatedBy returns the field manager of an annotation, empty when none or
// several own it.
func annotatedBy(object *ScaledObject, key string) string {
	manager := ""
	for i := range object.ManagedFields {
		entry := &object.ManagedFields[i]
		if entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owned := fields.Metadata.Annotations["f:"+key]; !owned {
			continue
		}
		if manager != "" && manager != entry.Manager {
			return ""
		}
		manager = entry.Manager
	}
	return manager
}

// annotateScaledObject changes the annotations of a ScaledObject, and writes
// nothing when they are as desired. It retries when another client wrote in
// between.
func (c *Client) annotateScaledObject(ctx context.Context, namespace, name, doing string, dryRun bool, annotationsFor func(*ScaledObject) (map[string]string, error)) error {
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		current, err := c.getScaledObject(ctx, namespace, name)
		if err != nil {
			return err
		}
		annotations, err := annotationsFor(current)
		if err != nil || maps.Equal(annotations, current.Annotations) {
			return err
		}
		patch, err := annotationsPatch(&current.ObjectMeta, annotations)
		if err != nil {
			return err
		}
		return withDryRun(c.rest.Patch(types.MergePatchType), dryRun).AbsPath("/apis/keda.sh/v1alpha1").
			Namespace(namespace).Resource("scaledobjects").Name(name).
			Param("fieldManager", v1alpha1.FieldManager).
			Body(patch).
			Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("%s ScaledObject %s/%s: %w", doing, namespace, name, err)
	}
	return nil
}

func (c *Client) getScaledObject(ctx context.Context, namespace, name string) (*ScaledObject, error) {
	body, err := c.rest.Get().AbsPath("/apis/keda.sh/v1alpha1").
		Namespace(namespace).Resource("scaledobjects").Name(name).
		Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	object := &ScaledObject{}
	if err := json.Unmarshal(body, object); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return object, nil
}

// annotationsPatch is the merge patch from an object's annotations to others.
// It carries the resource version, so that it fails when the object changed.
func annotationsPatch(object *metav1.ObjectMeta, annotations map[string]string) ([]byte, error) {
	changes := map[string]any{}
	for key := range object.Annotations {
		if _, ok := annotations[key]; !ok {
			changes[key] = nil
		}
	}
	for key, value := range annotations {
		if before, ok := object.Annotations[key]; !ok || before != value {
			changes[key] = value
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": object.ResourceVersion,
		"annotations":     changes,
	}})
}
