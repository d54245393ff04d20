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

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

var (
	definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	// fleetsResource is a kind that has only a scale subresource.
	fleetsResource = schema.GroupVersionResource{Group: "e2e.example.com", Version: "v1", Resource: "fleets"}
)

// TestKindThatIsInstalledAfterItsElastiServiceWakesAndSleeps installs the kind of a
// target, and creates the target, when its ElastiService already exists. The server is
// authorized to scale the kind, and not to watch it: that it has no volumes to lose is for
// the annotation to say.
func TestKindThatIsInstalledAfterItsElastiServiceWakesAndSleeps(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Linger: 2 * time.Second, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.ScaleTargetRef = v1alpha1.ScaleTargetRef{APIVersion: fleetsResource.GroupVersion().String(), Kind: "Fleet", Name: "web"}
	}})
	s.check(app.Create(s.ctx))
	accept := []byte(`{"metadata":{"annotations":{"` + v1alpha1.AnnotationAcceptVolumeDeletion + `":"true"}}}`)
	_, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Patch(s.ctx, app.Name, types.MergePatchType, accept, metav1.PatchOptions{})
	s.check(err)
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionTargetFound, metav1.ConditionFalse)
	s.check(err)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeProxy))

	s.installFleets()
	fleets := s.Dynamic.Resource(fleetsResource).Namespace(s.namespace)
	fleet := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": fleetsResource.GroupVersion().String(), "kind": "Fleet",
		"metadata": map[string]any{"name": app.Name}, "spec": map[string]any{"replicas": int64(0)},
	}}
	_, err = fleets.Create(s.ctx, fleet, metav1.CreateOptions{})
	s.check(err)
	s.background(func(ctx context.Context) { runFleet(ctx, fleets, app) })
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionTargetFound, metav1.ConditionTrue)
	s.check(err)
	s.check(app.AwaitResolverSlice(s.ctx, true))
	s.check(app.AwaitReachable(s.ctx))

	s.checkPeer(s.get(app, "/first"), true)
	s.checkFleet(fleets, app, 1)
	s.check(app.AwaitMode(s.ctx, v1alpha1.ModeServe))
	s.awaitDirect(app)

	s.check(app.RequestSleep(s.ctx))
	_, err = s.AwaitDeployment(s.ctx, s.namespace, app.Name, "its fleet is at zero", func(deployment *appsv1.Deployment) bool {
		return *deployment.Spec.Replicas == 0
	})
	s.check(err)
	s.check(app.AwaitAsleep(s.ctx))
	s.checkFleet(fleets, app, 0)
	s.checkPeer(s.get(app, "/second"), true)
	s.checkFleet(fleets, app, 1)
}

// installFleets installs the CustomResourceDefinition until the test ends.
func (s *scene) installFleets() {
	s.Helper()
	definitions := s.Dynamic.Resource(definitionsResource)
	name := fleetsResource.GroupResource().String()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	})
	_, err := definitions.Create(s.ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": fleetsResource.Group, "scope": "Namespaced",
			"names": map[string]any{"kind": "Fleet", "plural": fleetsResource.Resource},
			"versions": []any{map[string]any{
				"name": fleetsResource.Version, "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
				"subresources": map[string]any{"scale": map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
			}},
		},
	}}, metav1.CreateOptions{})
	s.check(err)
	err = wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := s.Dynamic.Resource(fleetsResource).Namespace(s.namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
	s.check(err)
}

// runFleet is the controller of fleets, until ctx ends: it gives a Deployment of the
// same name the replicas of the fleet.
func runFleet(ctx context.Context, fleets dynamic.ResourceInterface, app *cluster.Application) {
	had := int64(0)
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		wants, err := fleetReplicas(ctx, fleets, app)
		if err == nil && wants != had && app.Scale(ctx, int32(wants)) == nil {
			had = wants
		}
		// Failures are retried.
		return false, nil
	})
}

func (s *scene) checkFleet(fleets dynamic.ResourceInterface, app *cluster.Application, want int64) {
	s.Helper()
	replicas, err := fleetReplicas(s.ctx, fleets, app)
	s.check(err)
	if replicas != want {
		s.Fatalf("spec.replicas of the fleet is %d, want %d", replicas, want)
	}
}

func fleetReplicas(ctx context.Context, fleets dynamic.ResourceInterface, app *cluster.Application) (int64, error) {
	fleet, err := fleets.Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("reading the fleet: %w", err)
	}
	replicas, _, err := unstructured.NestedInt64(fleet.Object, "spec", "replicas")
	return replicas, err
}
