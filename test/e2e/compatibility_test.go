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
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// A Service may publish pods that are not ready. Resolvers stay in the path until a pod is
// ready, and held requests get responses.
func TestResolversStayUntilAPodIsReadyThoughTheServicePublishesOthers(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-start-delay=8s"},
		Service:   func(spec *corev1.ServiceSpec) { spec.PublishNotReadyAddresses = true },
	})
	reported, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse)
	s.check(err)
	if reported.Reason != v1alpha1.ReasonPublishesNotReadyAddresses {
		t.Errorf("the condition is %+v", reported)
	}
	responded := make(chan error, 1)
	var response *cluster.Response
	go func() {
		var err error
		response, err = cluster.Get(s.ctx, app.URL("/held"))
		responded <- err
	}()
	s.check(app.AwaitResolverSlice(s.ctx, false))
	pods, err := app.AwaitPods(s.ctx, "it has a pod", func(pods []*corev1.Pod) bool { return len(pods) > 0 })
	s.check(err)
	if !cluster.PodIsReady(pods[0]) {
		t.Errorf("the resolvers have left while pod %s is not ready", pods[0].Name)
	}
	s.check(<-responded)
	s.checkResponse(app, response, "/held")
}

// Held requests are not released before the pod is ready.
func TestRequestIsNotReleasedBeforeTheKubeletCallsThePodReady(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const slow = 6
	healthy := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}
	for name, change := range map[string]func(*corev1.Container){
		// The kubelet probes out of turn each time it syncs the pod, so this takes less than
		// the period times the threshold.
		"success-threshold": func(container *corev1.Container) { container.ReadinessProbe.SuccessThreshold = 2 * slow },
		"initial-delay":     func(container *corev1.Container) { container.ReadinessProbe.InitialDelaySeconds = slow },
		"startup": func(container *corev1.Container) {
			container.StartupProbe = &corev1.Probe{ProbeHandler: healthy, InitialDelaySeconds: slow, PeriodSeconds: 1}
		},
		"startup-alone": func(container *corev1.Container) {
			container.ReadinessProbe = nil
			container.StartupProbe = &corev1.Probe{ProbeHandler: healthy, InitialDelaySeconds: slow, PeriodSeconds: 1}
		},
		"post-start": func(container *corev1.Container) {
			container.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 4}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.T = t
			app := s.asleep(cluster.ApplicationOptions{Name: name, Container: change})
			response := s.get(app, "/")
			received, err := response.ReceivedAt()
			s.check(err)
			accepting, err := response.AcceptingSince()
			s.check(err)
			ready := readySince(s.awaitPods(app, 1)[0])
			if received.Before(ready) {
				t.Errorf("the application had the request %s before it was ready", ready.Sub(received))
			}
			// Times of Kubernetes are cut to whole seconds, so ready is up to one too early.
			if ready.Sub(accepting) < time.Second {
				t.Errorf("the pod was ready %s after it accepted connections, the test shows nothing", ready.Sub(accepting))
			}
		})
	}
}

// readySince returns when a pod became ready.
func readySince(pod *corev1.Pod) time.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// A StatefulSet whose volumes would be deleted with its last pod is not put to
// sleep, unless the ElastiService accepts the loss.
func TestVolumesOfASleepingStatefulSetAreNotDeletedUnlessThatIsAccepted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	remove, err := s.CreateVolume(s.ctx, s.namespace, s.TempDir())
	s.check(err)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		if err := remove(ctx); err != nil {
			s.Error(err)
		}
	})
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.ScaleTargetRef.Kind = "StatefulSet"
	}})
	s.check(app.CreateService(s.ctx))
	s.check(app.CreateStatefulSet(s.ctx, s.namespace))
	s.check(app.CreateElastiService(s.ctx))
	s.awaitPods(app, 1)
	reported, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse)
	s.check(err)
	if reported.Reason != v1alpha1.ReasonVolumesDeletedAtZero {
		t.Errorf("the condition is %+v", reported)
	}

	s.check(app.RequestSleep(s.ctx))
	_, err = s.AwaitElastiService(s.ctx, app.Namespace, app.Name, "the request for sleep is given up", func(elastiService *v1alpha1.ElastiService) bool {
		return elastiService.Status.SleepRequestedTime == nil
	})
	s.check(err)
	s.awaitEvent(app, v1alpha1.ReasonSleepFailed)
	s.get(app, "/")
	if claims := s.claims(); claims != 1 {
		t.Fatalf("%d claims of volumes are left, want 1", claims)
	}

	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%s:"true"}}}`, strconv.Quote(v1alpha1.AnnotationAcceptVolumeDeletion))
	_, err = s.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Patch(s.ctx, app.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.check(err)
	_, err = app.AwaitCondition(s.ctx, v1alpha1.ConditionTargetCompatible, metav1.ConditionTrue)
	s.check(err)
	s.check(app.RequestSleep(s.ctx))
	s.check(app.AwaitAsleep(s.ctx))
}

// claims returns the number of PersistentVolumeClaims that are not being deleted.
func (s *scene) claims() int {
	s.Helper()
	found, err := s.Host.CoreV1().PersistentVolumeClaims(s.namespace).List(s.ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	count := 0
	for i := range found.Items {
		if found.Items[i].DeletionTimestamp == nil {
			count++
		}
	}
	return count
}
