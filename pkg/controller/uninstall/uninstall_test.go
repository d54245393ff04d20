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

package uninstall

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

const name, namespace = "elasti-apiserver", "elasti-system"

// installation is a fake cluster with the product and a runner for it.
type installation struct {
	client *fake.Clientset
	// runs and teardowns count what was called.
	runs, teardowns atomic.Int32
	cancel          context.CancelFunc
	ended           chan error
}

// start starts a runner. teardown is the error of its teardown.
func start(t *testing.T, teardown error) *installation {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	i := &installation{
		client: fake.NewClientset(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
			&appsv1.Deployment{ObjectMeta: meta},
			&corev1.ServiceAccount{ObjectMeta: meta},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"example.com/other"}}},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}},
		),
		ended: make(chan error, 1),
	}
	runner, err := New(Options{
		Host: i.client, Namespace: namespace, Name: name,
		Run: func(ctx context.Context) error {
			i.runs.Add(1)
			<-ctx.Done()
			return nil
		},
		Teardown: func(ctx context.Context) error {
			i.teardowns.Add(1)
			return errors.Join(teardown, ctx.Err())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	i.cancel = cancel
	go func() { i.ended <- runner.Run(ctx) }()
	synctest.Wait()
	return i
}

func (i *installation) stop(t *testing.T) {
	t.Helper()
	i.cancel()
	if err := <-i.ended; err != nil {
		t.Error(err)
	}
}

func (i *installation) hasFinalizers(t *testing.T) bool {
	t.Helper()
	account, err := i.client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role, err := i.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding, err := i.client.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(role.Finalizers, "example.com/other") {
		t.Error("the finalizer of another owner is removed")
	}
	finalizers := slices.Concat(account.Finalizers, role.Finalizers, binding.Finalizers)
	return len(finalizers) == 4
}

func (i *installation) deleteDeployment(t *testing.T) {
	t.Helper()
	if err := i.client.AppsV1().Deployments(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestRestartIsNoUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.stop(t)
		if runs, teardowns := i.runs.Load(), i.teardowns.Load(); runs != 1 || teardowns != 0 {
			t.Errorf("%d runs and %d teardowns, want 1 and 0", runs, teardowns)
		}
		if !i.hasFinalizers(t) {
			t.Error("the permissions have no finalizer")
		}
	})
}

func TestDeploymentIsDeletedBeforeTheServerHasToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.deleteDeployment(t)
		i.stop(t)
		if teardowns := i.teardowns.Load(); teardowns != 1 {
			t.Errorf("%d teardowns, want 1", teardowns)
		}
		if i.hasFinalizers(t) {
			t.Error("the permissions still have a finalizer")
		}
	})
}

// markDeleted does what a deletion does to a ClusterRoleBinding and a ClusterRole
// that finalizers keep.
func (i *installation) markDeleted(t *testing.T, bindingToo bool) {
	t.Helper()
	role, err := i.client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.DeletionTimestamp = ptr.To(metav1.Now())
	if err := i.client.Tracker().Update(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), role, ""); err != nil {
		t.Fatal(err)
	}
	if !bindingToo {
		return
	}
	binding, err := i.client.RbacV1().ClusterRoleBindings().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding.DeletionTimestamp = ptr.To(metav1.Now())
	if err := i.client.Tracker().Update(rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), binding, ""); err != nil {
		t.Fatal(err)
	}
}

// A Deployment that is deleted and made again, as by kubectl replace --force, is
// no uninstall, whether the server that is told to stop or the next one sees it.
func TestDeploymentThatIsReplacedIsNoUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.deleteDeployment(t)
		i.cancel()
		<-time.After(replacementTime / 2)
		if _, err := i.client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		i.stop(t)
		if teardowns := i.teardowns.Load(); teardowns != 0 {
			t.Errorf("%d teardowns, want none", teardowns)
		}
		if !i.hasFinalizers(t) {
			t.Error("the permissions have no finalizer")
		}
	})
}

// A ClusterRole can be made again only when the finalizer lets it be deleted.
func TestClusterRoleThatIsReplacedIsReleasedAndNoUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.markDeleted(t, false)
		until(t, func() bool { return !i.hasFinalizers(t) })
		<-time.After(time.Minute)
		if teardowns, runs := i.teardowns.Load(), i.runs.Load(); teardowns != 0 || runs != 1 {
			t.Errorf("%d teardowns and %d runs, want 0 and 1", teardowns, runs)
		}
		i.stop(t)
	})
}

// createDeployment makes the Deployment again.
func (i *installation) createDeployment(t *testing.T) {
	t.Helper()
	if _, err := i.client.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// As by kubectl replace --force of one file after the other: the ClusterRole is back as
// soon as the finalizer lets it, and then the Deployment is away for a moment.
func TestPartsThatAreReplacedOneAfterTheOtherAreNoUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.markDeleted(t, false)
		for end := time.Now().Add(time.Minute); i.hasFinalizers(t) && time.Now().Before(end); {
			<-time.After(50 * time.Millisecond)
			synctest.Wait()
		}
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "new", Finalizers: []string{"example.com/other"}}}
		if err := i.client.Tracker().Update(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), role, ""); err != nil {
			t.Fatal(err)
		}
		<-time.After(200 * time.Millisecond)
		i.deleteDeployment(t)
		<-time.After(1500 * time.Millisecond)
		i.createDeployment(t)
		<-time.After(time.Minute)
		if teardowns := i.teardowns.Load(); teardowns != 0 {
			t.Errorf("%d teardowns, want none", teardowns)
		}
		if !i.hasFinalizers(t) {
			t.Error("the permissions have no finalizer")
		}
		i.stop(t)
	})
}

// A part that is not made again was taken for replaced. It says nothing of what is
// replaced later, and an uninstall is one all the same.
func TestPartThatStaysDeletedMakesNoReplacementAnUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.markDeleted(t, false)
		<-time.After(time.Minute)
		for range 2 {
			i.deleteDeployment(t)
			<-time.After(replacementTime / 2)
			i.createDeployment(t)
			<-time.After(time.Minute)
		}
		if teardowns := i.teardowns.Load(); teardowns != 0 {
			t.Errorf("%d teardowns for Deployments that were replaced, want none", teardowns)
		}
		i.deleteDeployment(t)
		<-time.After(2 * replacementTime)
		if teardowns := i.teardowns.Load(); teardowns != 1 {
			t.Errorf("%d teardowns for a Deployment that is not made again, want 1", teardowns)
		}
		i.stop(t)
	})
}

// A part that is deleted again before it was seen to be back has its time again.
func TestPartThatIsReplacedTwiceIsNoUninstall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		role := func(uid types.UID) *rbacv1.ClusterRole {
			return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, DeletionTimestamp: ptr.To(metav1.Now()), Finalizers: []string{"example.com/other", Finalizer}}}
		}
		for _, uid := range []types.UID{"second", "third"} {
			if err := i.client.Tracker().Update(rbacv1.SchemeGroupVersion.WithResource("clusterroles"), role(uid), ""); err != nil {
				t.Fatal(err)
			}
			<-time.After(replacementTime / 2)
			synctest.Wait()
			if !i.hasFinalizers(t) {
				t.Errorf("the ClusterRole %s was released before its time", uid)
			}
			<-time.After(replacementTime)
			synctest.Wait()
			if i.hasFinalizers(t) {
				t.Errorf("the ClusterRole %s was not released", uid)
			}
		}
		if teardowns := i.teardowns.Load(); teardowns != 0 {
			t.Errorf("%d teardowns, want none", teardowns)
		}
		i.stop(t)
	})
}

func TestPermissionsAreDeletedWhileTheServerRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.markDeleted(t, true)
		until(t, func() bool { return i.teardowns.Load() > 0 })
		i.stop(t)
	})
}

// until waits until check is true. In a synctest bubble it takes no time.
func until(t *testing.T, check func() bool) {
	t.Helper()
	ticker := time.NewTicker(checkPeriod)
	defer ticker.Stop()
	for !check() {
		<-ticker.C
		synctest.Wait()
	}
}

// A teardown that fails must not keep the cluster from deleting anything.
func TestFailedTeardownReleasesAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, errors.New("broken"))
		i.deleteDeployment(t)
		i.stop(t)
		if i.hasFinalizers(t) {
			t.Error("the permissions still have a finalizer")
		}
	})
}

func TestWhatIsInstalledAgainRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil)
		i.deleteDeployment(t)
		until(t, func() bool { return i.teardowns.Load() == 1 && i.runs.Load() == 2 })
		i.stop(t)
		if teardowns := i.teardowns.Load(); teardowns != 1 {
			t.Errorf("%d teardowns, want 1", teardowns)
		}
		if !i.hasFinalizers(t) {
			t.Error("the permissions have no finalizer again")
		}
	})
}

func TestErrorOfTheRunEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		runner, err := New(Options{
			Host: fake.NewClientset(), Namespace: namespace, Name: name,
			Run:      func(context.Context) error { return broken },
			Teardown: func(context.Context) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}

func TestServiceAccountOfAnotherNameGetsTheFinalizer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: namespace}})
		runner, err := New(Options{
			Host: client, Namespace: namespace, Name: name, ServiceAccount: "other",
			Run:      func(ctx context.Context) error { <-ctx.Done(); return nil },
			Teardown: func(context.Context) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(ctx) }()
		synctest.Wait()
		account, err := client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "other", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(account.Finalizers, Finalizer) {
			t.Errorf("the ServiceAccount has the finalizers %q, want %s among them", account.Finalizers, Finalizer)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
