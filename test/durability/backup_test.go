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
	"path/filepath"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// restoreTimeout is how long after the restore of the host cluster every target at zero has
// resolvers in front of it again.
const restoreTimeout = time.Minute

// scene is applications in all states, at the time of a backup.
type scene struct {
	// unchanged and deleted sleep at the backup, and so does woken. sleeping is awake, and
	// so is unmanaged, which has no ElastiService. What happens to them after the backup is
	// what they are called.
	unchanged, deleted, woken, sleeping, unmanaged *application
	// stored are the UIDs of the ElastiServices at the backup, by namespace.
	stored map[string]types.UID
}

// The host cluster, which stores the ElastiServices, is put back to an older backup of its
// etcd while the server runs.
func TestOlderBackupOfTheHostLeavesNoTargetOutOfReach(t *testing.T) {
	replicas := hostCluster.start(t, 2)
	s := newScene(t)
	backup := filepath.Join(t.TempDir(), "backup")
	if err := shared.SaveHost(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	s.change(t)
	if err := shared.RestoreHost(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	s.awaitInReach(t, replicas)
	s.expectRestored(t, replicas)
	for _, a := range []*application{s.unchanged, s.deleted, s.woken} {
		a.expectWake(t, a.elastiServices)
		a.runPod(t)
		a.awaitMode(t, v1alpha1.ModeServe)
	}
	s.unmanaged.manage(t)
	s.unmanaged.awaitMode(t, v1alpha1.ModeServe)
	s.sleeping.sleep(t)
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{
		unchanged: newApplication(t, 0), deleted: newApplication(t, 0), woken: newApplication(t, 0),
		sleeping: newApplication(t, 1), unmanaged: newApplication(t, 1),
		stored: map[string]types.UID{},
	}
	for _, a := range s.managed() {
		a.manage(t)
	}
	for _, a := range []*application{s.unchanged, s.deleted, s.woken} {
		a.awaitMode(t, v1alpha1.ModeProxy)
	}
	s.sleeping.awaitMode(t, v1alpha1.ModeServe)
	for _, a := range s.managed() {
		object, err := a.elastiServices.Get(t.Context(), appName, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("reading the ElastiService of %s: %v", a.namespace, err)
		}
		s.stored[a.namespace] = object.UID
	}
	return s
}

// managed are the applications that have an ElastiService at the backup.
func (s *scene) managed() []*application {
	return []*application{s.unchanged, s.deleted, s.woken, s.sleeping}
}

// change makes each application what it is called, but for unmanaged, which gets an
// ElastiService and is put to sleep.
func (s *scene) change(t *testing.T) {
	t.Helper()
	sleepingPod, unmanagedPod := s.sleeping.pod, s.unmanaged.pod
	s.unmanaged.manage(t)
	s.unmanaged.awaitMode(t, v1alpha1.ModeServe)
	s.unmanaged.sleep(t)
	s.sleeping.sleep(t)
	s.woken.expectWake(t, s.woken.elastiServices)
	s.woken.runPod(t)
	s.woken.awaitMode(t, v1alpha1.ModeServe)
	s.deleted.unmanage(t)
	// After the restore, the cluster has the pods of the backup.
	s.woken.pod, s.deleted.pod, s.sleeping.pod, s.unmanaged.pod = "", "", sleepingPod, unmanagedPod
}

// sleep requests that the target is put to sleep, and waits until it is.
func (a *application) sleep(t *testing.T) {
	t.Helper()
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: appName, Namespace: a.namespace}}
	if _, err := a.elastiServices.UpdateScale(t.Context(), appName, scale, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("requesting sleep of %s: %v", a.namespace, err)
	}
	eventually(t, "the target of "+a.namespace+" is put to sleep", func(ctx context.Context) string {
		replicas, err := a.replicas(ctx)
		if err != nil {
			return err.Error()
		}
		if replicas != 0 {
			return fmt.Sprintf("it has %d replicas", replicas)
		}
		return ""
	})
	a.removePod(t)
	a.awaitMode(t, v1alpha1.ModeProxy)
}

// unmanage deletes the ElastiService of a sleeping target, which is woken for that.
func (a *application) unmanage(t *testing.T) {
	t.Helper()
	if err := a.elastiServices.Delete(t.Context(), appName, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the ElastiService of %s: %v", a.namespace, err)
	}
	a.runPod(t)
	eventually(t, "the ElastiService of "+a.namespace+" is deleted", func(ctx context.Context) string {
		_, err := a.elastiServices.Get(ctx, appName, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("reading it returns %v", err)
		}
		return ""
	})
}

// awaitInReach waits until the servers are ready, and all targets are awake or have resolvers
// in front of them.
func (s *scene) awaitInReach(t *testing.T, servers []*environment.Server) {
	t.Helper()
	restored := time.Now()
	eventuallyWithin(t, restoreTimeout, "no target is out of reach after the restore", func(ctx context.Context) string {
		for _, server := range servers {
			if err := server.Health(ctx, "/readyz"); err != nil {
				return fmt.Sprintf("the server at port %d is not ready: %v", server.Port, err)
			}
		}
		for _, a := range s.managed() {
			if complaint := a.outOfReach(ctx); complaint != "" {
				return complaint
			}
		}
		return ""
	})
	t.Logf("no target is out of reach %s after the restore", time.Since(restored).Round(time.Millisecond))
}

// outOfReach says why requests to the application would get no response, or why its status
// is not true.
func (a *application) outOfReach(ctx context.Context) string {
	object, err := a.elastiServices.Get(ctx, appName, metav1.GetOptions{})
	if err != nil {
		return fmt.Sprintf("reading the ElastiService of %s: %v", a.namespace, err)
	}
	replicas, err := a.replicas(ctx)
	if err != nil {
		return fmt.Sprintf("reading the scale of %s: %v", a.namespace, err)
	}
	resolvers, err := a.readyResolvers(ctx)
	if err != nil {
		return fmt.Sprintf("reading the endpoints of %s: %v", a.namespace, err)
	}
	if replicas == 0 && resolvers == 0 {
		return fmt.Sprintf("the target of %s is at zero without a resolver in front of it, and its mode is %q", a.namespace, object.Status.Mode)
	}
	if inPath := resolvers > 0; inPath != (object.Status.Mode == v1alpha1.ModeProxy) {
		return fmt.Sprintf("the mode of %s is %q, with %d resolvers in the path and %d replicas", a.namespace, object.Status.Mode, resolvers, replicas)
	}
	return ""
}

// expectRestored expects that every replica has the ElastiServices of the backup, and has
// read them again.
func (s *scene) expectRestored(t *testing.T, replicas []*environment.Server) {
	t.Helper()
	for i, replica := range replicas {
		client := clientset(t, directTo(replica)).ElastiV1alpha1()
		for _, options := range []metav1.GetOptions{{}, {ResourceVersion: "0"}} {
			what := fmt.Sprintf("replica %d has the ElastiServices of the backup at version %q", i, options.ResourceVersion)
			eventuallyWithin(t, restoreTimeout, what, func(ctx context.Context) string {
				for _, a := range s.managed() {
					object, err := client.ElastiServices(a.namespace).Get(ctx, appName, options)
					if err != nil || object.UID != s.stored[a.namespace] {
						return fmt.Sprintf("that of %s has the UID %q (%v), want %s", a.namespace, object.GetUID(), err, s.stored[a.namespace])
					}
				}
				_, err := client.ElastiServices(s.unmanaged.namespace).Get(ctx, appName, options)
				if !apierrors.IsNotFound(err) {
					return fmt.Sprintf("reading the one that was created after the backup returns %v, want that it does not exist", err)
				}
				return ""
			})
		}
	}
}
