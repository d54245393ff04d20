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

package integration

import (
	"context"
	"slices"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiapply "github.com/truefoundry/elasti-apiserver/pkg/generated/applyconfiguration/elasti/v1alpha1"
)

// waitUntilSettled waits until the controller has no more writes, and returns the last
// resource version.
func waitUntilSettled(t *testing.T, namespace string) (resourceVersion string) {
	t.Helper()
	waitForCondition(t, namespace, v1alpha1.ConditionReady, metav1.ConditionTrue)
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	// What decides when targets sleep writes last.
	waitForCondition(t, namespace, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
	return readElastiService(t, namespace).ResourceVersion
}

func TestDryRunOfAnyVerbWritesNothing(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	client := elastiServices(namespace)
	before := waitUntilSettled(t, namespace)
	target, err := shared.Kubernetes.AppsV1().Deployments(namespace).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	dryRun := []string{metav1.DryRunAll}
	merge := func(body string, subresources ...string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			return shared.Elasti.ElastiV1alpha1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("elastiservices").Name("app").
				SubResource(subresources...).Param("dryRun", metav1.DryRunAll).Body([]byte(body)).Do(ctx).Error()
		}
	}
	for name, write := range map[string]func(ctx context.Context) error{
		"create": func(ctx context.Context) error {
			other := newElastiService("other")
			other.Spec.Service = "other"
			_, err := client.Create(ctx, other, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
		"update": func(ctx context.Context) error {
			object, err := client.Get(ctx, "app", metav1.GetOptions{})
			if err != nil {
				return err
			}
			object.Labels = map[string]string{"dry": "run"}
			_, err = client.Update(ctx, object, metav1.UpdateOptions{DryRun: dryRun})
			return err
		},
		"patch":        merge(`{"spec":{"cooldownPeriod":61}}`),
		"patch status": merge(`{"status":{"conditions":[{"type":"Checked","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, "status"),
		"patch scale":  merge(`{"spec":{"replicas":2}}`, "scale"),
		"update scale": func(ctx context.Context) error {
			scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: 2}}
			_, err := client.UpdateScale(ctx, "app", scale, metav1.UpdateOptions{DryRun: dryRun})
			return err
		},
		"apply": func(ctx context.Context) error {
			applied := elastiapply.ElastiService("app", namespace).WithLabels(map[string]string{"dry": "run"})
			_, err := client.Apply(ctx, applied, metav1.ApplyOptions{FieldManager: "team", DryRun: dryRun})
			return err
		},
		"wake": func(ctx context.Context) error {
			_, err := client.Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{DryRun: dryRun})
			return err
		},
		"delete": func(ctx context.Context) error {
			return client.Delete(ctx, "app", metav1.DeleteOptions{DryRun: dryRun})
		},
		"deletecollection": func(ctx context.Context) error {
			return client.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dryRun}, metav1.ListOptions{})
		},
	} {
		if err := write(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var versions []string
		for i := range list.Items {
			versions = append(versions, list.Items[i].ResourceVersion)
		}
		if !slices.Equal(versions, []string{before}) {
			t.Fatalf("after a dry run of %s there are objects of the versions %v, want %s only", name, versions, before)
		}
		after, err := shared.Kubernetes.AppsV1().Deployments(namespace).Get(t.Context(), "app", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if after.ResourceVersion != target.ResourceVersion {
			t.Fatalf("a dry run of %s has changed the target", name)
		}
	}
}
