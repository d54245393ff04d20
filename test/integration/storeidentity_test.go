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
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// The paths of the probes in the manifests.
const (
	livenessProbe  = "/livez?exclude=etcd"
	readinessProbe = "/readyz?exclude=etcd&exclude=etcd-readiness&exclude=storage"
)

// exchangedStore is a place for a store, where a test puts another one while the first one
// is away.
type exchangedStore struct {
	place, away string
	// stop ends what serves the store, and start serves it again.
	stop, start func() error
}

// putAway puts the store away. What is served next is empty.
func (s *exchangedStore) putAway(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.stop(), os.Rename(s.place, s.away), s.start()); err != nil {
		t.Fatal(err)
	}
}

// bringBack puts the store in the place of the other one.
func (s *exchangedStore) bringBack(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.stop(), os.RemoveAll(s.place), os.Rename(s.away, s.place), s.start()); err != nil {
		t.Fatal(err)
	}
}

// newExchangedEtcd starts an etcd whose store can be exchanged.
func newExchangedEtcd(t *testing.T) (*environment.Etcd, *exchangedStore) {
	t.Helper()
	directory := t.TempDir()
	etcd := startEtcd(t, directory)
	return etcd, &exchangedStore{place: filepath.Join(directory, "data"), away: filepath.Join(directory, "away"), stop: etcd.Stop, start: etcd.Start}
}

// expectAnotherStore waits until a server that was started on another store says so, and
// expects that it is alive, does not serve, and says how to proceed.
func expectAnotherStore(t *testing.T, server *loneServer, namespace, recorded string) {
	t.Helper()
	var reason string
	eventually(t, "the server reports the store", func(ctx context.Context) string {
		code, body, err := server.health(ctx, "/readyz/store-identity")
		if err != nil {
			return err.Error()
		}
		reason = body
		if code != http.StatusInternalServerError || !strings.Contains(body, "this installation uses the store") {
			return body
		}
		return ""
	})
	for _, want := range []string{"the store is empty", recorded, "ConfigMap elasti-system/", "--accept-new-store=" + recorded, "storage copy"} {
		if !strings.Contains(reason, want) {
			t.Errorf("the reason does not say %q: %s", want, reason)
		}
		if !strings.Contains(server.process.Output(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if code, body, err := server.health(t.Context(), livenessProbe); err != nil || code != http.StatusOK {
		t.Errorf("%s returns %d (%v), want 200: %s", livenessProbe, code, err, body)
	}
	if code, body, err := server.health(t.Context(), readinessProbe); err != nil || code != http.StatusInternalServerError {
		t.Errorf("%s returns %d (%v), want 500: %s", readinessProbe, code, err, body)
	}
	eventually(t, "requests are rejected with the reason", func(ctx context.Context) string {
		_, err := server.elastiServices(t, namespace).Create(ctx, newElastiService("other"), metav1.CreateOptions{})
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), recorded) {
			return "creating returned " + errorText(err)
		}
		return ""
	})
}

// expectStoredBefore expects an object as it was before.
func expectStoredBefore(t *testing.T, server *loneServer, before *v1alpha1.ElastiService) {
	t.Helper()
	after, err := server.elastiServices(t, before.Namespace).Get(t.Context(), before.Name, metav1.GetOptions{})
	if err != nil || after.UID != before.UID {
		t.Errorf("with its store back, the object is %v (%v), want the UID %s", after, err, before.UID)
	}
}

func recordedStore(t *testing.T, namespace string) string {
	t.Helper()
	recorded, err := shared.RecordedStore(t.Context(), namespace+"-store")
	if err != nil || recorded == "" {
		t.Fatalf("the recorded store is %q (%v)", recorded, err)
	}
	return recorded
}

// A server whose etcd is another one, or was emptied, waits for the right one. It does
// not need to be restarted.
func TestServerWaitsForTheStoreOfItsInstallation(t *testing.T) {
	namespace := newNamespace(t)
	createDeployment(t, namespace, 0)
	etcd, store := newExchangedEtcd(t)
	flags := []string{"--storage=etcd", "--etcd-servers=" + etcd.Endpoint}
	first := startLoneServer(t, namespace, flags...)
	created, err := first.elastiServices(t, namespace).Create(t.Context(), newElastiService("app"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	recorded := recordedStore(t, namespace)
	if err := first.process.Stop(); err != nil {
		t.Fatal(err)
	}

	store.putAway(t)
	server := runLoneServer(t, namespace, flags...)
	expectAnotherStore(t, server, namespace, recorded)
	store.bringBack(t)
	server.waitUntilReady(t, namespace)
	expectStoredBefore(t, server, created)
}

// A server that has read its ElastiServices wakes their targets also when its store becomes
// another one, and serves the right one as soon as it is back.
func TestWakesGoOnWhenTheStoreBecomesAnotherOne(t *testing.T) {
	namespace := newNamespace(t)
	createDeployment(t, namespace, 0)
	etcd, store := newExchangedEtcd(t)
	server := startLoneServer(t, namespace, "--storage=etcd", "--etcd-servers="+etcd.Endpoint)
	services := server.elastiServices(t, namespace)
	created, err := services.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	// A cache of the server that has not read the object could not use it.
	eventually(t, "the server has read it", func(ctx context.Context) string {
		_, err := services.Get(ctx, "app", metav1.GetOptions{ResourceVersion: "0"})
		return errorText(err)
	})
	store.putAway(t)
	eventually(t, "the server reports the store", func(ctx context.Context) string {
		_, body, err := server.health(ctx, "/readyz/storage")
		if err != nil || !strings.Contains(body, "this installation uses the store") {
			return body + errorText(err)
		}
		return ""
	})
	server.waitForHealth(t, readinessProbe, http.StatusOK)
	if _, err := services.Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("reading from another store returned %v, want that it is not available", err)
	}
	woken, err := services.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil || woken.Status.Replicas != 1 {
		t.Errorf("with another store a wake returns %+v (%v), want 1 replica", woken, err)
	}
	store.bringBack(t)
	server.waitUntilReady(t, namespace)
	expectStoredBefore(t, server, created)
}

// A volume was lost, and this is accepted.
func TestNewStoreIsAcceptedOnPurpose(t *testing.T) {
	namespace := newNamespace(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	flags := []string{"--storage=embedded", "--data-dir=" + dataDir}
	first := startLoneServer(t, namespace, flags...)
	created, err := first.elastiServices(t, namespace).Create(t.Context(), newElastiService("app"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	recorded := recordedStore(t, namespace)
	current := first.process
	store := &exchangedStore{place: dataDir, away: dataDir + ".away", stop: func() error { return current.Stop() }, start: func() error { return nil }}

	store.putAway(t)
	server := runLoneServer(t, namespace, flags...)
	expectAnotherStore(t, server, namespace, recorded)
	if err := server.process.Stop(); err != nil {
		t.Fatal(err)
	}
	server = startLoneServer(t, namespace, append(flags, "--accept-new-store="+recorded)...)
	current = server.process
	if list, err := server.elastiServices(t, namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("the new store has %v (%v), want nothing", list, err)
	}
	if now := recordedStore(t, namespace); now == recorded {
		t.Errorf("the record still names %s", now)
	}
	// The record names the new store now. The flag names another one, so that the previous
	// store is not accepted in its place.
	store.bringBack(t)
	server = runLoneServer(t, namespace, append(flags, "--accept-new-store="+recorded)...)
	server.waitForHealth(t, readinessProbe, http.StatusInternalServerError)
	if err := server.process.Stop(); err != nil {
		t.Fatal(err)
	}
	server = startLoneServer(t, namespace, append(flags, "--accept-new-store="+recordedStore(t, namespace))...)
	expectStoredBefore(t, server, created)
}
