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

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var appLabels = map[string]string{"app": "app"}

// createApplication creates the Deployment and the Service "app". Its pods do not run until
// a test calls runPod.
func createApplication(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	createDeployment(t, namespace, replicas)
	createService(t, namespace)
}

func createDeployment(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: appLabels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: appLabels},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: ptr.To(false),
					Containers: []corev1.Container{{
						Name: "app", Image: "app",
						Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
						ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}},
					}},
				},
			},
		},
	}
	if _, err := shared.Kubernetes.AppsV1().Deployments(namespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Deployment: %v", err)
	}
}

func createService(t *testing.T, namespace string) *corev1.Service {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: corev1.ServiceSpec{
			Selector: appLabels,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("http"), AppProtocol: ptr.To("kubernetes.io/h2c")},
				{Name: "metrics", Port: 9090, TargetPort: intstr.FromInt32(9090)},
			},
		},
	}
	created, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating the Service: %v", err)
	}
	return created
}

// desiredReplicas returns spec.replicas of the Deployment "app".
func desiredReplicas(t *testing.T, namespace string) int32 {
	t.Helper()
	scale, err := shared.Kubernetes.AppsV1().Deployments(namespace).GetScale(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the scale of the Deployment: %v", err)
	}
	return scale.Spec.Replicas
}

// scaleTarget scales the Deployment "app", as a user does by hand.
func scaleTarget(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	if _, err := shared.Kubernetes.AppsV1().Deployments(namespace).UpdateScale(t.Context(), "app", scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("scaling the Deployment to %d: %v", replicas, err)
	}
}

// runPod waits for a new pod of an application and lets it run, not yet ready.
func runPod(t *testing.T, namespace, app string) (name string) {
	t.Helper()
	eventually(t, "a pod of "+app+" was created", func(ctx context.Context) string {
		pods, err := shared.Kubernetes.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err.Error()
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
				continue
			}
			name = pod.Name
			// A pod of the previous scale may still be terminating.
			if _, err := shared.Node.Run(ctx, namespace, name); err != nil {
				return err.Error()
			}
			return ""
		}
		return fmt.Sprintf("none of its %d pods is new", len(pods.Items))
	})
	return name
}

func setReady(t *testing.T, namespace, pod string, ready bool) {
	t.Helper()
	if err := shared.Node.SetReady(t.Context(), namespace, pod, ready); err != nil {
		t.Fatal(err)
	}
}

func removePod(t *testing.T, namespace, pod string) {
	t.Helper()
	if err := shared.Node.Remove(t.Context(), namespace, pod); err != nil {
		t.Fatal(err)
	}
}

func waitForTerminating(t *testing.T, namespace, pod string) {
	t.Helper()
	eventually(t, "the pod terminates", func(ctx context.Context) string {
		object, err := shared.Kubernetes.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if object.DeletionTimestamp == nil {
			return "it is not being deleted"
		}
		return ""
	})
}
