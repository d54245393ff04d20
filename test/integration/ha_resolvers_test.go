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
	"fmt"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// resolverTimeout is longer than the 30 s for which no resolver may be ready.
const resolverTimeout = 90 * time.Second

func TestWithoutResolversNothingSleeps(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)

	only := shared.Resolvers[0].Pod
	setReady(t, environment.SystemNamespace, only, false)
	t.Cleanup(func() {
		if err := shared.Node.SetReady(context.Background(), environment.SystemNamespace, only, true); err != nil {
			t.Error(err)
		}
	})
	eventuallyWithin(t, resolverTimeout, "the target is awake", func(context.Context) string {
		if replicas := desiredReplicas(t, namespace); replicas != 1 {
			return fmt.Sprintf("it has %d replicas", replicas)
		}
		return ""
	})
	waitForCondition(t, namespace, v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse)
	eventually(t, "an Event says so", func(ctx context.Context) string {
		list, err := shared.Kubernetes.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, event := range list.Items {
			if event.Reason == "NoReadyResolver" && event.Regarding.Kind == "ElastiService" && event.Regarding.UID == readElastiService(t, namespace).UID {
				return ""
			}
		}
		return fmt.Sprintf("none of %d does", len(list.Items))
	})
	pod := runPod(t, namespace, "app")
	setReady(t, namespace, pod, true)
	waitForMode(t, namespace, v1alpha1.ModeServe)

	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app"}}
	if _, err := elastiServices(namespace).UpdateScale(t.Context(), "app", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("requesting the scale-down: %v", err)
	}
	// The controller has synced another object completely after the request.
	other := newNamespace(t)
	createElastiService(t, other, newElastiService("app"))
	waitForCondition(t, other, v1alpha1.ConditionServiceFound, metav1.ConditionFalse)
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("the target has %d replicas while no resolver can hold its traffic", replicas)
	}

	setReady(t, environment.SystemNamespace, only, true)
	waitForCondition(t, namespace, v1alpha1.ConditionResolverAvailable, metav1.ConditionTrue)
	eventually(t, "the target sleeps", func(context.Context) string {
		if replicas := desiredReplicas(t, namespace); replicas != 0 {
			return fmt.Sprintf("it has %d replicas", replicas)
		}
		return ""
	})
}
