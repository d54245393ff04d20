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

package signature

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

func newSigner(t *testing.T, fill byte) *Signer {
	t.Helper()
	signer, err := New(bytes.Repeat([]byte{fill}, keyBytes))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func private() *metav1.ObjectMeta {
	return &metav1.ObjectMeta{
		Namespace:   "shop",
		Name:        "elasti-cart-pvt",
		UID:         "uid",
		Labels:      map[string]string{v1alpha1.LabelRole: "private"},
		Annotations: map[string]string{v1alpha1.AnnotationOwner: "cart", v1alpha1.AnnotationTarget: `{"target":{"name":"cart"}}`},
	}
}

func TestOnlyWhatWasSignedCounts(t *testing.T) {
	signer := newSigner(t, 1)
	signed := private()
	signer.Sign(signed)
	if !signer.Made(signed) {
		t.Error("a signed object is not known")
	}
	// What others add to it is theirs.
	metav1.SetMetaDataLabel(signed, "team", "shop")
	metav1.SetMetaDataAnnotation(signed, "note", "see the wiki")
	if !signer.Made(signed) {
		t.Error("a signed object with another label is not known")
	}
	for name, forge := range map[string]func(*metav1.ObjectMeta){
		"no signature":      func(object *metav1.ObjectMeta) { delete(object.Annotations, v1alpha1.AnnotationSignature) },
		"no annotations":    func(object *metav1.ObjectMeta) { object.Annotations = nil },
		"empty signature":   func(object *metav1.ObjectMeta) { object.Annotations[v1alpha1.AnnotationSignature] = "" },
		"other key":         func(object *metav1.ObjectMeta) { newSigner(t, 2).Sign(object) },
		"a copy":            func(object *metav1.ObjectMeta) { object.UID = "another" },
		"another name":      func(object *metav1.ObjectMeta) { object.Name = "elasti-stock-pvt" },
		"another namespace": func(object *metav1.ObjectMeta) { object.Namespace = "bank" },
		"another role":      func(object *metav1.ObjectMeta) { object.Labels[v1alpha1.LabelRole] = "resolver" },
		"another owner":     func(object *metav1.ObjectMeta) { object.Annotations[v1alpha1.AnnotationOwner] = "stock" },
		"another target": func(object *metav1.ObjectMeta) {
			object.Annotations[v1alpha1.AnnotationTarget] = `{"target":{"name":"database"}}`
		},
		"another Service": func(object *metav1.ObjectMeta) { object.Labels[discoveryv1.LabelServiceName] = "stock" },
		"parts moved": func(object *metav1.ObjectMeta) {
			object.Namespace, object.Name = object.Namespace+object.Name[:1], object.Name[1:]
		},
	} {
		forged := private()
		signer.Sign(forged)
		forge(forged)
		if signer.Made(forged) {
			t.Errorf("%s: the object counts as made by the server", name)
		}
	}
	if _, err := New([]byte("short")); err == nil {
		t.Error("a short key was accepted")
	}
}

func sourceOf(client *fake.Clientset) *Source {
	return &Source{Secrets: client.CoreV1().Secrets("elasti-system"), Name: "key", Clock: clock.RealClock{}}
}

// Replicas that start at the same time have one key, and a later one has it too.
func TestReplicasShareTheKey(t *testing.T) {
	client := fake.NewClientset()
	signed := private()
	var mu sync.Mutex
	var starting sync.WaitGroup
	for range 8 {
		starting.Go(func() {
			signer, err := sourceOf(client).Load(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if _, ok := signed.Annotations[v1alpha1.AnnotationSignature]; !ok {
				signer.Sign(signed)
			}
			if !signer.Made(signed) {
				t.Error("two replicas have different keys")
			}
		})
	}
	starting.Wait()
	signer, err := sourceOf(client).Load(t.Context())
	if err != nil || !signer.Made(signed) {
		t.Errorf("a later replica does not know what was signed: %v", err)
	}
}

// The Secret may be deleted before the server ends, and a server waits for it.
func TestTheKeyIsKept(t *testing.T) {
	client := fake.NewClientset()
	source := sourceOf(client)
	first, err := source.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	informerstest.React(&client.Fake, "get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("away")
	})
	again, err := source.Load(t.Context())
	signed := private()
	first.Sign(signed)
	if err != nil || !again.Made(signed) {
		t.Errorf("when the Secret cannot be read any more: %v", err)
	}
	if _, err := sourceOf(client).Load(t.Context()); err == nil {
		t.Error("there is a signer without a key")
	}
}

func TestMissingPermissionToReadTheKeyNamesTheRole(t *testing.T) {
	client := fake.NewClientset()
	informerstest.React(&client.Fake, "get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "key", errors.New("no"))
	})
	if _, err := sourceOf(client).Load(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "Role elasti-apiserver") {
		t.Errorf("got %v, want the Role that allows it", err)
	}
}

func TestAwaitWaitsForTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		failures := 3
		informerstest.React(&client.Fake, "get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			failures--
			return failures >= 0, nil, errors.New("away")
		})
		started := time.Now()
		if _, err := sourceOf(client).Await(t.Context()); err != nil || time.Since(started) != 3*loadRetry {
			t.Errorf("got %v after %s, want a signer after three failures", err, time.Since(started))
		}
		failures = 1000
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := sourceOf(client).Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the context", err)
		}
	})
}

func TestASecretWithoutAKeyIsNotUsed(t *testing.T) {
	client := fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "elasti-system", Name: "key"}, Data: map[string][]byte{SecretKey: []byte("guess")}})
	if _, err := sourceOf(client).Load(t.Context()); err == nil {
		t.Error("a short key was used")
	}
}
