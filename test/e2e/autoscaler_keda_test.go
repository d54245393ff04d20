//go:build autoscalers

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
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
	"github.com/truefoundry/elasti-apiserver/test/e2e/programs"
)

// kedaTimeout bounds a test with KEDA, some steps of which are slow.
const kedaTimeout = 8 * time.Minute

// Annotations with which users, and the product, pause KEDA.
const (
	kedaPaused         = "autoscaling.keda.sh/paused"
	kedaPausedReplicas = "autoscaling.keda.sh/paused-replicas"
)

// A target that KEDA scales sleeps although its ScaledObject has a minimum of one replica,
// also when KEDA restarts meanwhile. A wake restores the ScaledObject.
func TestKEDAIsPausedWhileTheTargetSleeps(t *testing.T) {
	s := newSceneWithin(t, kedaTimeout)
	keda := s.startKEDA()
	observer := s.observe()
	// KEDA scales this target all the time, which shows that it runs.
	witness := s.NewApplication(s.namespace, cluster.ApplicationOptions{Name: "witness", Replicas: 1})
	s.check(witness.CreateDeployment(s.ctx))
	s.check(witness.CreateScaledObject(s.ctx, 1))
	s.checkKEDAScales(witness, observer)

	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		sleepsByTraffic(spec)
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "web"}
	}})
	s.check(app.CreateDeployment(s.ctx))
	s.check(app.CreateService(s.ctx))
	s.check(app.CreateScaledObject(s.ctx, 1))
	s.checkKEDAScales(app, observer)
	before := s.scaledObject(app).GetAnnotations()

	s.check(app.CreateElastiService(s.ctx))
	_, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionAutoscalerFound, metav1.ConditionTrue)
	s.check(err)
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.awaitKEDAPaused(app, true)
	s.checkStaysAsleep(app, observer, func() {
		keda.Kill()
		s.check(keda.Start())
		s.checkKEDAScales(witness, observer)
	})

	// A wake restores the ScaledObject, and KEDA scales the target again.
	s.check(app.AwaitReachable(s.ctx))
	s.get(app, "/")
	s.awaitAnnotations(app, before)
	s.awaitKEDAPaused(app, false)
	traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 5, Limit: 10000, Timeout: time.Minute}
	stop := s.background(traffic.Run)
	s.changeScaledObject(app, map[string]any{"spec": map[string]any{"minReplicaCount": 2}})
	s.awaitReplicas(app, 2)

	// A user has paused KEDA at three replicas. That is suspended during the sleep.
	s.changeScaledObject(app, map[string]any{"metadata": map[string]any{"annotations": map[string]any{kedaPausedReplicas: "3"}}})
	s.awaitReplicas(app, 3)
	pinned := s.scaledObject(app).GetAnnotations()
	stop()
	s.checkTraffic(traffic)
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.checkStaysAsleep(app, observer, func() { s.checkKEDAScales(witness, observer) })
	if asleep := s.scaledObject(app).GetAnnotations(); asleep[kedaPaused] != "true" || asleep[kedaPausedReplicas] != "" {
		t.Errorf("while the target sleeps, the annotations are %v", asleep)
	}
	s.get(app, "/again")
	s.awaitAnnotations(app, pinned)
	s.awaitReplicas(app, 3)
}

// A target sleeps and wakes although KEDA, which should confirm the pause, does not run.
// The ScaledObject is restored when KEDA runs again.
func TestTargetSleepsAndWakesWhileKEDAIsDown(t *testing.T) {
	s := newSceneWithin(t, kedaTimeout)
	keda := s.startKEDA()
	observer := s.observe()
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		sleepsByTraffic(spec)
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "web"}
	}})
	s.check(app.CreateDeployment(s.ctx))
	s.check(app.CreateService(s.ctx))
	s.check(app.CreateScaledObject(s.ctx, 1))
	s.checkKEDAScales(app, observer)
	before := s.scaledObject(app).GetAnnotations()
	keda.Kill()

	s.check(app.CreateElastiService(s.ctx))
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.check(app.AwaitReachable(s.ctx))
	s.get(app, "/")
	s.checkReplicas(app, 1)
	s.awaitAnnotations(app, before)
	s.check(app.DeleteElastiService(s.ctx))
	s.check(s.AwaitElastiServiceDeleted(s.ctx, app.Namespace, app.Name))
	s.check(keda.Start())
	s.checkKEDAScales(app, observer)
}

// By default KEDA scales targets to zero by itself. A woken target nevertheless stays awake
// for the cooldown, and is scaled by KEDA after it. A target without an ElastiService is
// scaled to zero at once meanwhile.
func TestKEDAAtZeroDoesNotUndoAWake(t *testing.T) {
	s := newSceneWithin(t, kedaTimeout)
	s.startKEDA()
	observer := s.observe()
	// KEDA scales this target to zero, which shows that it polls.
	witness := s.NewApplication(s.namespace, cluster.ApplicationOptions{Name: "witness", Replicas: 1})
	s.check(witness.CreateDeployment(s.ctx))
	s.check(witness.CreateScaledObject(s.ctx, 0))
	checkKEDAScalesToZero := func() {
		t.Helper()
		s.awaitReplicas(witness, 0)
		started := time.Now()
		s.check(witness.Scale(s.ctx, 1))
		awake, err := observer.Await(s.ctx, started, cluster.Scaled, witness.Name, "1")
		s.check(err)
		_, err = observer.Await(s.ctx, awake.At, cluster.Scaled, witness.Name, "0")
		s.check(err)
	}
	checkKEDAScalesToZero()

	const cooldown = 90 * time.Second
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.CooldownPeriod = ptr.To(int32(cooldown / time.Second))
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "web"}
	}})
	s.check(app.Create(s.ctx))
	s.check(app.CreateScaledObject(s.ctx, 0))
	s.awaitReplicas(app, 0)
	s.check(app.AwaitAsleep(s.ctx))
	s.check(app.AwaitReachable(s.ctx))
	reported, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse)
	s.check(err)
	if reported.Reason != v1alpha1.ReasonAutoscalerScalesToZero {
		t.Errorf("the condition is %+v", reported)
	}
	before := s.scaledObject(app).GetAnnotations()

	woken := time.Now()
	s.get(app, "/")
	for range 3 {
		checkKEDAScalesToZero()
	}
	if after := time.Since(woken); after < cooldown {
		s.checkReplicas(app, 1)
	} else {
		t.Errorf("KEDA took %s to scale the other application to zero, the test shows nothing", after)
	}
	asleep, err := observer.Await(s.ctx, woken, cluster.Scaled, app.Name, "0")
	s.check(err)
	// The recorded time of the wake has whole seconds.
	if awake := asleep.At.Sub(woken); awake < cooldown-2*time.Second {
		t.Errorf("KEDA scaled to zero %s after the wake, the cooldown is %s", awake, cooldown)
	}
	s.awaitAnnotations(app, before)
	s.check(app.AwaitAsleep(s.ctx))
	s.get(app, "/again")
	s.check(app.DeleteElastiService(s.ctx))
	s.check(s.AwaitElastiServiceDeleted(s.ctx, app.Namespace, app.Name))
	s.awaitAnnotations(app, before)
}

// A pause by the user in the form that the predecessor of the product uses is kept through
// wakes and sleeps.
func TestKEDAPausesOfTheUserSurvive(t *testing.T) {
	s := newSceneWithin(t, kedaTimeout)
	s.startKEDA()
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "web"}
	}})
	s.check(app.CreateDeployment(s.ctx))
	s.check(app.CreateService(s.ctx))
	s.check(app.CreateScaledObject(s.ctx, 1))
	_, err := s.RunKubectl(s.ctx, s.Kubeconfig, "", "annotate", "--namespace="+s.namespace, "scaledobject/"+app.Name, kedaPaused+"=true", kedaPausedReplicas+"=0")
	s.check(err)
	s.awaitReplicas(app, 0)
	before := s.scaledObject(app).GetAnnotations()
	s.check(app.CreateElastiService(s.ctx))
	s.check(app.AwaitAsleep(s.ctx))
	s.check(app.AwaitReachable(s.ctx))
	reported, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse)
	s.check(err)
	if reported.Reason != v1alpha1.ReasonAutoscalerPausedAtZero {
		t.Errorf("the condition is %+v", reported)
	}
	s.get(app, "/")
	if after := s.scaledObject(app).GetAnnotations(); !maps.Equal(after, before) {
		t.Errorf("after a wake, the annotations are %v, want %v", after, before)
	}
	s.check(app.DeleteElastiService(s.ctx))
	s.check(s.AwaitElastiServiceDeleted(s.ctx, app.Namespace, app.Name))
	if after := s.scaledObject(app).GetAnnotations(); !maps.Equal(after, before) {
		t.Errorf("after the ElastiService, the annotations are %v, want %v", after, before)
	}
}

// startKEDA installs KEDA's definitions and runs its operator for the scene's
// namespace, until the test ends.
func (s *scene) startKEDA() *programs.KEDA {
	s.Helper()
	remove, err := s.InstallKEDADefinitions(s.ctx)
	if remove != nil {
		s.Cleanup(func() { s.after(remove) })
	}
	s.check(err)
	keda, err := programs.NewKEDA(s.tool("keda"), s.Kubeconfig, s.namespace, s.TempDir())
	s.check(err)
	s.check(keda.Start())
	s.Cleanup(func() {
		keda.Kill()
		if s.Failed() {
			s.Log("KEDA:", keda.Log())
		}
		s.after(func(ctx context.Context) error { return s.ReleaseScaledObjects(ctx, s.namespace) })
	})
	return keda
}

func (s *scene) scaledObject(app *cluster.Application) *unstructured.Unstructured {
	s.Helper()
	found, err := s.ScaledObjects(app.Namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	return found
}

func (s *scene) changeScaledObject(app *cluster.Application, patch map[string]any) {
	s.Helper()
	encoded, err := json.Marshal(patch)
	s.check(err)
	_, err = s.ScaledObjects(app.Namespace).Patch(s.ctx, app.Name, types.MergePatchType, encoded, metav1.PatchOptions{})
	s.check(err)
}

// checkKEDAScales expects KEDA to scale up an application that was scaled to zero by
// hand. No other component does so for an application without an ElastiService.
func (s *scene) checkKEDAScales(app *cluster.Application, observer *cluster.Observer) {
	s.Helper()
	started := time.Now()
	s.check(app.Scale(s.ctx, 0))
	asleep, err := observer.Await(s.ctx, started, cluster.Scaled, app.Name, "0")
	s.check(err)
	_, err = observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1")
	s.check(err)
}

// awaitKEDAPaused waits until the condition Paused of the ScaledObject has a status.
func (s *scene) awaitKEDAPaused(app *cluster.Application, paused bool) {
	s.Helper()
	s.awaitScaledObject(app, fmt.Sprintf("paused is %t", paused), func(found *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
		for _, entry := range conditions {
			if condition, ok := entry.(map[string]any); ok && condition["type"] == "Paused" {
				return (condition["status"] == "True") == paused
			}
		}
		return !paused
	})
}

func (s *scene) awaitAnnotations(app *cluster.Application, want map[string]string) {
	s.Helper()
	s.awaitScaledObject(app, fmt.Sprintf("its annotations are %v", want), func(found *unstructured.Unstructured) bool {
		return maps.Equal(found.GetAnnotations(), want)
	})
}

func (s *scene) awaitScaledObject(app *cluster.Application, what string, condition func(*unstructured.Unstructured) bool) {
	s.Helper()
	var last *unstructured.Unstructured
	err := wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(context.Context) (bool, error) {
		last = s.scaledObject(app)
		return condition(last), nil
	})
	if err != nil {
		s.Fatalf("ScaledObject %s: waiting until %s: %v; its annotations are %v, its status %v", app.Name, what, err, last.GetAnnotations(), last.Object["status"])
	}
}
