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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// KEDA's documented annotations for pausing a ScaledObject.
const (
	// kedaPaused with the value "true" stops scaling, at whatever number of
	// replicas there is.
	kedaPaused = "autoscaling.keda.sh/paused"
	// kedaPausedReplicas pins the target to a number of replicas.
	kedaPausedReplicas = "autoscaling.keda.sh/paused-replicas"
)

// pauseScaledObject pauses a ScaledObject at the replicas that it has. A
// number of replicas that the user had pinned it to is put aside.
func (c *Client) pauseScaledObject(ctx context.Context, namespace, name string) error {
	return c.annotateScaledObject(ctx, namespace, name, "pausing", false, pauseAnnotations)
}

// resumeScaledObject undoes pauseScaledObject.
func (c *Client) resumeScaledObject(ctx context.Context, namespace, name string, dryRun bool) error {
	return c.annotateScaledObject(ctx, namespace, name, "resuming", dryRun, resumeAnnotations)
}

// IsPaused tells whether the annotations of an autoscaler say that
// PauseAutoscaler paused it.
func IsPaused(annotations map[string]string) bool {
	_, ok := annotations[v1alpha1.AnnotationPausedAnnotations]
	return ok
}

// pauseAnnotations returns the annotations of a paused ScaledObject.
func pauseAnnotations(current map[string]string) (map[string]string, error) {
	if _, ok := current[v1alpha1.AnnotationPausedAnnotations]; ok {
		return current, nil
	}
	before := map[string]string{}
	if !pausedByKubeElasti(current) {
		for _, key := range []string{kedaPaused, kedaPausedReplicas} {
			if value, ok := current[key]; ok {
				before[key] = value
			}
		}
	}
	remembered, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	paused := withoutPause(current)
	paused[kedaPaused] = "true"
	paused[v1alpha1.AnnotationPausedAnnotations] = string(remembered)
	return paused, nil
}

// resumeAnnotations returns the annotations of a ScaledObject as they were
// before pauseAnnotations.
func resumeAnnotations(current map[string]string) (map[string]string, error) {
	remembered, ok := current[v1alpha1.AnnotationPausedAnnotations]
	if !ok {
		if pausedByKubeElasti(current) {
			return withoutPause(current), nil
		}
		return current, nil
	}
	before := map[string]string{}
	if err := json.Unmarshal([]byte(remembered), &before); err != nil {
		return nil, fmt.Errorf("annotation %s holds %q, which is not a JSON object of annotations: remove it and the annotation %s by hand: %w", v1alpha1.AnnotationPausedAnnotations, remembered, kedaPaused, err)
	}
	resumed := withoutPause(current)
	for _, key := range []string{kedaPaused, kedaPausedReplicas} {
		if value, ok := before[key]; ok {
			resumed[key] = value
		}
	}
	return resumed, nil
}

// pausedByKubeElasti tells whether KubeElasti put the target to sleep: it
// always writes exactly this pair, which would keep the target from waking.
func pausedByKubeElasti(annotations map[string]string) bool {
	return annotations[kedaPaused] == "true" && annotations[kedaPausedReplicas] == "0"
}

func withoutPause(annotations map[string]string) map[string]string {
	rest := maps.Clone(annotations)
	if rest == nil {
		rest = map[string]string{}
	}
	delete(rest, kedaPaused)
	delete(rest, kedaPausedReplicas)
	delete(rest, v1alpha1.AnnotationPausedAnnotations)
	return rest
}

// annotateScaledObject changes the annotations of a ScaledObject, and writes
// nothing when they are as wanted. It starts again when somebody else wrote in
// between.
func (c *Client) annotateScaledObject(ctx context.Context, namespace, name, doing string, dryRun bool, wanted func(map[string]string) (map[string]string, error)) error {
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		current, err := c.getScaledObject(ctx, namespace, name)
		if err != nil {
			return err
		}
		annotations, err := wanted(current.Annotations)
		if err != nil || maps.Equal(annotations, current.Annotations) {
			return err
		}
		patch, err := annotationsPatch(current, annotations)
		if err != nil {
			return err
		}
		return withDryRun(c.rest.Patch(types.MergePatchType), dryRun).AbsPath("/apis/keda.sh/v1alpha1").
			Namespace(namespace).Resource("scaledobjects").Name(name).
			Body(patch).
			Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("%s ScaledObject %s/%s: %w", doing, namespace, name, err)
	}
	return nil
}

func (c *Client) getScaledObject(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	body, err := c.rest.Get().AbsPath("/apis/keda.sh/v1alpha1").
		Namespace(namespace).Resource("scaledobjects").Name(name).
		Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	object := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(body, object); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return object, nil
}

// annotationsPatch is the merge patch from an object's annotations to others.
// It carries the resource version, so that it fails when the object changed.
func annotationsPatch(object *metav1.PartialObjectMetadata, annotations map[string]string) ([]byte, error) {
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
