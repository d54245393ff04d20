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
	"slices"
	"sync"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// fakeScaling scales the Deployments of a cluster.
type fakeScaling struct {
	cluster *cluster

	mu sync.Mutex
	// kinds maps the kinds that are served to resources.
	kinds map[string]string
	// paused and resumed are the autoscalers that were paused and resumed,
	// keptAwake those of the latter that are kept from scaling to zero.
	paused, resumed, keptAwake []string
	// others is true when others scale targets up.
	others bool
	// unreadable is the error with which scales cannot be read. Nil when they can.
	unreadable error
	// failing is the error of Wake and Scale, failures how often it was returned.
	failing  error
	failures int
	// hanging are the namespaces for which discovery does not respond, hung is how
	// many calls have hung.
	hanging []string
	hung    int
}

// hangs reports whether calls for a namespace hang.
func (f *fakeScaling) hangs(namespace string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.hanging, namespace) {
		return false
	}
	f.hung++
	return true
}

func (f *fakeScaling) hungCalls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hung
}

func (f *fakeScaling) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = err
}

// hide has scales not be readable.
func (f *fakeScaling) hide(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unreadable = err
}

func (f *fakeScaling) attempts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failures
}

func (f *fakeScaling) serveKind(kind, resource string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kinds[kind] = resource
}

func (f *fakeScaling) forgetKind(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.kinds, kind)
}

func (f *fakeScaling) Resolve(ctx context.Context, target scaling.Target) (schema.GroupVersionResource, error) {
	if f.hangs(target.Namespace) {
		<-ctx.Done()
		return schema.GroupVersionResource{}, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	resource, ok := f.kinds[target.Kind]
	if !ok {
		return schema.GroupVersionResource{}, &scaling.KindError{APIVersion: target.APIVersion, Kind: target.Kind, Problem: scaling.KindNotServed}
	}
	groupVersion, err := schema.ParseGroupVersion(target.APIVersion)
	return groupVersion.WithResource(resource), err
}

func (f *fakeScaling) Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error) {
	resource, err := f.Resolve(ctx, target)
	f.mu.Lock()
	err = errors.Join(err, f.unreadable)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	object, err := f.cluster.dynamic.Resource(resource).Namespace(target.Namespace).Get(ctx, target.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: object.GetResourceVersion(), UID: object.GetUID()},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicasOf(object, "spec")},
		Status:     autoscalingv1.ScaleStatus{Replicas: replicasOf(object, "status")},
	}, nil
}

func replicasOf(object *unstructured.Unstructured, of string) int32 {
	replicas, _, _ := unstructured.NestedInt64(object.Object, of, "replicas")
	return int32(replicas)
}

func (f *fakeScaling) Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, _ bool) (scaling.Result, error) {
	f.mu.Lock()
	failing := f.failing
	if failing != nil {
		f.failures++
	}
	f.mu.Unlock()
	if failing != nil {
		return scaling.Result{}, failing
	}
	scale, err := f.Get(ctx, target)
	if err != nil {
		return scaling.Result{}, err
	}
	if err := f.ResumeAutoscaler(ctx, target.Namespace, autoscaler); err != nil {
		return scaling.Result{}, err
	}
	if scale.Spec.Replicas >= minimum {
		return scaling.Result{Replicas: scale.Spec.Replicas}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cluster.setDeployment(target.Name, minimum, 0)
	return scaling.Result{Replicas: minimum, Scaled: true}, nil
}

func (f *fakeScaling) ScaleToZero(ctx context.Context, target scaling.Target, read *autoscalingv1.Scale) error {
	current, err := f.Get(ctx, target)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil {
		return f.failing
	}
	if current.ResourceVersion != read.ResourceVersion {
		return apierrors.NewConflict(deploymentsResource.GroupResource(), target.Name, errors.New("the object has been modified"))
	}
	f.cluster.setDeployment(target.Name, 0, 2)
	return nil
}

func (f *fakeScaling) PauseAutoscaler(_ context.Context, _ string, autoscaler scaling.Autoscaler) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if autoscaler.Name != "" {
		f.paused = append(f.paused, autoscaler.Name)
	}
	return nil
}

func (f *fakeScaling) ResumeAutoscaler(_ context.Context, _ string, autoscaler scaling.Autoscaler) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if autoscaler.Name != "" {
		f.resumed = append(f.resumed, autoscaler.Name)
	}
	return nil
}

func (f *fakeScaling) KeepAutoscalerAwake(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	f.mu.Lock()
	if autoscaler.Name != "" {
		f.keptAwake = append(f.keptAwake, autoscaler.Name)
	}
	f.mu.Unlock()
	return f.ResumeAutoscaler(ctx, namespace, autoscaler)
}

func (f *fakeScaling) Restore(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (scaling.Result, error) {
	return f.Wake(ctx, target, autoscaler, minimum, false)
}

func (f *fakeScaling) ScaledUpSince(context.Context, scaling.Target, time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.others
}

func (f *fakeScaling) replicas(t *testing.T, name string) int32 {
	t.Helper()
	scale, err := f.Get(t.Context(), scaling.Target{Namespace: shop, APIVersion: "apps/v1", Kind: "Deployment", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return scale.Spec.Replicas
}
