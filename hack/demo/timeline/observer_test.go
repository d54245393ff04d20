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

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastifake "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

// TestObserverSaysWhatHappenedToOneElastiService changes what belongs to an
// ElastiService, and what does not, and reads the timeline.
func TestObserverSaysWhatHappenedToOneElastiService(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	deployment := &appsv1.Deployment{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0)}}
	host := fake.NewClientset(deployment,
		&corev1.Service{ObjectMeta: named("web"), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}}})
	elasti := elastifake.NewClientset(&v1alpha1.ElastiService{
		ObjectMeta: named("web"),
		Spec:       v1alpha1.ElastiServiceSpec{Service: "web", ScaleTargetRef: v1alpha1.ScaleTargetRef{Kind: "Deployment", Name: "web"}},
		Status:     v1alpha1.ElastiServiceStatus{PrivateService: "web-private", Mode: v1alpha1.ModeProxy},
	})
	o, err := newObserver(ctx, host, elasti, "shop", "web")
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); o.Run(ctx, started) }()
	defer func() { cancel(); <-ended }()
	<-started
	start := time.Now()

	deployment.Spec.Replicas = ptr.To[int32](1)
	if _, err := host.AppsV1().Deployments("shop").Update(ctx, deployment, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitChange(ctx, t, o, start, cluster.Scaled, "web")
	for _, pod := range []string{"other", "web"} {
		object := &corev1.Pod{ObjectMeta: named(pod + "-1")}
		object.Labels = map[string]string{"app": pod}
		if _, err := host.CoreV1().Pods("shop").Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	awaitChange(ctx, t, o, start, cluster.PodCreated, "web-1")
	slice := &discoveryv1.EndpointSlice{ObjectMeta: named("web-private-1"), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web-private"}
	if _, err := host.DiscoveryV1().EndpointSlices("shop").Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitChange(ctx, t, o, start, cluster.EndpointReady, "web-private")

	var recorded timeline
	o.addMoments(start, &recorded)
	var printed strings.Builder
	if err := recorded.print(&printed, start); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(printed.String()) {
		if _, what, ok := strings.Cut(line, watchSource); ok {
			lines = append(lines, strings.TrimSpace(what))
		}
	}
	want := []string{
		"Deployment web is scaled to 1",
		"pod web-1 is created",
		"private Service lists the pod's address",
		"private Service lists the pod as ready",
	}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the timeline is\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func awaitChange(ctx context.Context, t *testing.T, o *observer, start time.Time, change cluster.Change, name string) {
	t.Helper()
	if _, err := o.Await(ctx, start, change, name, ""); err != nil {
		t.Fatal(err)
	}
}
