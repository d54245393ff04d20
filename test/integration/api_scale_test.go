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

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestKubectlScalesBothWays(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	kubectl := newKubectl(t, namespace)
	for _, step := range []struct {
		arguments []string
		want      int32
	}{
		{[]string{"--replicas=3"}, 3},
		{[]string{"--replicas=2", "--current-replicas=3"}, 2},
		{[]string{"--replicas=4", "--dry-run=server"}, 2},
	} {
		if _, err := kubectl.Run(t.Context(), "", append([]string{"scale", "elastiservice/app"}, step.arguments...)...); err != nil {
			t.Fatal(err)
		}
		if got := desiredReplicas(t, namespace); got != step.want {
			t.Errorf("after kubectl scale %v spec.replicas of the target is %d, want %d", step.arguments, got, step.want)
		}
	}
	if _, err := kubectl.Run(t.Context(), "", "scale", "elastiservice/app", "--replicas=5", "--current-replicas=1"); err == nil {
		t.Error("kubectl scale succeeded although --current-replicas does not match")
	}
}

// Only the controller can put a target to sleep without losing requests.
func TestScalingToZeroRequestsSleep(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 2)
	createElastiService(t, namespace, newElastiService("app"))
	if _, err := newKubectl(t, namespace).Run(t.Context(), "", "scale", "elastiservice/app", "--replicas=0"); err != nil {
		t.Fatal(err)
	}
	requested := readElastiService(t, namespace).Status.SleepRequestedTime != nil
	if asleep := desiredReplicas(t, namespace) == 0; !requested && !asleep {
		t.Error("the target does not sleep, and its scale-down is not requested")
	}
	scale, err := elastiServices(namespace).GetScale(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 0 {
		t.Errorf("the scale wants %d replicas, want 0", scale.Spec.Replicas)
	}

	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if readElastiService(t, namespace).Status.SleepRequestedTime != nil {
		t.Error("a wake did not take the request to sleep back")
	}
}

func TestScaleOfMissingElastiServiceIsNotFound(t *testing.T) {
	client := elastiServices(newNamespace(t))
	if _, err := client.GetScale(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading the scale returns %v, want not found", err)
	}
	if _, err := client.UpdateScale(t.Context(), "app", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.UpdateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("writing the scale returns %v, want not found", err)
	}
}

// A HorizontalPodAutoscaler scales through an ElastiService as through any kind, and does
// not scale a sleeping target.
func TestHorizontalPodAutoscalerScalesAnElastiService(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "elasti.truefoundry.com/v1alpha1", Kind: "ElastiService", Name: "app"},
			MinReplicas:    ptr.To[int32](3),
			MaxReplicas:    5,
		},
	}
	autoscalers := shared.Kubernetes.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	if _, err := autoscalers.Create(t.Context(), autoscaler, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the autoscaler sees that the target sleeps", func(ctx context.Context) string {
		current, err := autoscalers.Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, condition := range current.Status.Conditions {
			if condition.Type == autoscalingv2.ScalingActive && condition.Status == corev1.ConditionFalse && condition.Reason == "ScalingDisabled" {
				return ""
			}
		}
		return fmt.Sprintf("its conditions are %+v", current.Status.Conditions)
	})
	if got := desiredReplicas(t, namespace); got != 0 {
		t.Errorf("the autoscaler scaled a sleeping target to %d", got)
	}

	if _, err := elastiServices(namespace).Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the autoscaler scales to its minimum", func(context.Context) string {
		if got := desiredReplicas(t, namespace); got != 3 {
			return fmt.Sprintf("spec.replicas of the target is %d", got)
		}
		return ""
	})
}
