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

package durability

import (
	"context"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// appName is the name of the Deployment, the Service and the ElastiService of an
// application.
const appName = "app"

// application is a Deployment and its Service in a namespace of their own. Its methods fail
// the test when the cluster does not do what they say.
type application struct {
	namespace string
	// pod is the running pod, empty if there is none.
	pod            string
	elastiServices elastiv1alpha1client.ElastiServiceInterface
}

// newApplication creates an application. With a replica, its pod is ready.
func newApplication(t *testing.T, replicas int32) *application {
	t.Helper()
	a := &application{namespace: newNamespace(t)}
	a.elastiServices = elastiServices(t, throughTheAggregator(), a.namespace)
	labels := map[string]string{"app": appName}
	meta := metav1.ObjectMeta{Name: appName}
	deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(replicas),
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: appName, Image: appName, Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}},
		}},
	}}
	if _, err := shared.Kubernetes.AppsV1().Deployments(a.namespace).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Deployment: %v", err)
	}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: 8080}}}}
	if _, err := shared.Kubernetes.CoreV1().Services(a.namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Service: %v", err)
	}
	if replicas > 0 {
		a.runPod(t)
	}
	return a
}

// manage creates the ElastiService.
func (a *application) manage(t *testing.T) {
	t.Helper()
	r := &record{name: appName, service: appName, sent: 1}
	if _, err := a.elastiServices.Create(t.Context(), r.newObject(), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the ElastiService of %s: %v", a.namespace, err)
	}
}

// runPod waits for a new pod, and makes it ready.
func (a *application) runPod(t *testing.T) {
	t.Helper()
	eventually(t, "there is a new pod in "+a.namespace, func(ctx context.Context) string {
		pods, err := shared.Kubernetes.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				a.pod = pod.Name
				if _, err := shared.Node.Run(ctx, a.namespace, pod.Name); err != nil {
					return err.Error()
				}
				return ""
			}
		}
		return fmt.Sprintf("none of its %d pods is new", len(pods.Items))
	})
	if err := shared.Node.SetReady(t.Context(), a.namespace, a.pod, true); err != nil {
		t.Fatal(err)
	}
}

// removePod ends the pod of a target that was scaled to zero.
func (a *application) removePod(t *testing.T) {
	t.Helper()
	eventually(t, "the pod in "+a.namespace+" terminates", func(ctx context.Context) string {
		pod, err := shared.Kubernetes.CoreV1().Pods(a.namespace).Get(ctx, a.pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.DeletionTimestamp == nil {
			return "it does not"
		}
		return ""
	})
	if err := shared.Node.Remove(t.Context(), a.namespace, a.pod); err != nil {
		t.Fatal(err)
	}
	a.pod = ""
}

// scale scales the Deployment, as a user does by hand.
func (a *application) scale(t *testing.T, replicas int32) {
	t.Helper()
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: appName, Namespace: a.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	if _, err := shared.Kubernetes.AppsV1().Deployments(a.namespace).UpdateScale(t.Context(), appName, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("scaling the Deployment of %s to %d: %v", a.namespace, replicas, err)
	}
}

// replicas returns how many replicas of the target are wanted.
func (a *application) replicas(ctx context.Context) (int32, error) {
	scale, err := shared.Kubernetes.AppsV1().Deployments(a.namespace).GetScale(ctx, appName, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	return scale.Spec.Replicas, nil
}

// awaitMode waits until the ElastiService has a mode.
func (a *application) awaitMode(t *testing.T, mode v1alpha1.Mode) {
	t.Helper()
	eventually(t, fmt.Sprintf("the mode of %s is %s", a.namespace, mode), func(ctx context.Context) string {
		object, err := a.elastiServices.Get(ctx, appName, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if object.Status.Mode != mode {
			return fmt.Sprintf("it is %q, with the conditions %+v", object.Status.Mode, object.Status.Conditions)
		}
		return ""
	})
}

// readyResolvers returns how many ready resolvers are among the endpoints of the Service.
func (a *application) readyResolvers(ctx context.Context) (count int, err error) {
	list, err := shared.Kubernetes.DiscoveryV1().EndpointSlices(a.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + appName + "," + discoveryv1.LabelManagedBy + "=" + v1alpha1.SliceManagedBy,
	})
	if err != nil {
		return 0, err
	}
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if ptr.Deref(endpoint.Conditions.Ready, true) {
				count++
			}
		}
	}
	return count, nil
}

// expectWake expects that a wake through a client scales the target from zero.
func (a *application) expectWake(t *testing.T, through elastiv1alpha1client.ElastiServiceInterface) {
	t.Helper()
	eventually(t, "the target of "+a.namespace+" can be woken", func(ctx context.Context) string {
		woken, err := through.Wake(ctx, appName, &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		if woken.Status.Replicas != 1 {
			return fmt.Sprintf("the response is %+v", woken.Status)
		}
		return ""
	})
	if replicas, err := a.replicas(t.Context()); err != nil || replicas != 1 {
		t.Errorf("the target of %s has %d replicas after a wake (%v), want 1", a.namespace, replicas, err)
	}
}
