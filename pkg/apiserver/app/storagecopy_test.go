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

package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spf13/pflag"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/storecopy"
)

// inEmbedded returns the flags of a side for an embedded store.
func inEmbedded(side, dataDir string) []string {
	return []string{"--" + side + "=embedded", "--" + side + "-data-dir=" + dataDir}
}

// inEtcd returns the flags of a side for a new etcd.
func inEtcd(t *testing.T) func(side string) []string {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(side string) []string {
		return []string{"--" + side + "=etcd", "--" + side + "-etcd-servers=" + server.Endpoint()}
	}
}

func parseCopy(t *testing.T, arguments ...string) *options.StorageCopy {
	t.Helper()
	o := options.NewStorageCopy()
	flags := pflag.NewFlagSet("copy", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(arguments); err != nil {
		t.Fatal(err)
	}
	return o
}

// useStore calls use with the store that the flags of the side "from" name.
func useStore(t *testing.T, flags []string, use func(store *storecopy.Store)) {
	t.Helper()
	opened, err := openStore(t.Context(), parseCopy(t, flags...).From, failOnDamage)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := opened.close(); err != nil {
			t.Error(err)
		}
	}()
	use(&opened.Store)
}

// newStoredService is an ElastiService with all that a copy must keep.
func newStoredService(name string) *elasti.ElastiService {
	now := metav1.Now().Rfc3339Copy()
	return &elasti.ElastiService{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name), Generation: 3,
			CreationTimestamp: now, DeletionTimestamp: &now, Finalizers: []string{"example.com/kept"},
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "owner-uid"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "elasti.truefoundry.com/v1alpha1", Time: &now}},
		},
		Spec:   elasti.ElastiServiceSpec{Service: name, MinTargetReplicas: new(int32(1))},
		Status: elasti.ElastiServiceStatus{Mode: elasti.ModeProxy, ObservedGeneration: 2},
	}
}

func store(t *testing.T, resource *storecopy.Resource, object runtime.Object) {
	t.Helper()
	key, err := resource.KeyOf(object)
	if err != nil {
		t.Fatal(err)
	}
	if err := resource.Storage.Create(t.Context(), key, object, resource.New(), 0); err != nil {
		t.Fatal(err)
	}
}

// fillStore stores some objects.
func fillStore(t *testing.T, flags []string, services int) {
	t.Helper()
	useStore(t, flags, func(opened *storecopy.Store) {
		for i := range services {
			store(t, &opened.Resources[0], newStoredService(fmt.Sprintf("app-%d", i)))
			store(t, &opened.Resources[1], &elasti.ProxyPortClaim{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(10000 + i), UID: types.UID(fmt.Sprintf("claim-%d", i))},
				Spec:       elasti.ProxyPortClaimSpec{ProxyPort: int32(10000 + i), Port: 80, Owner: elasti.ProxyPortOwner{Namespace: "shop", Name: fmt.Sprintf("app-%d", i)}},
			})
		}
	})
}

// contentOf returns the identity of a store and its objects, without their versions.
func contentOf(t *testing.T, flags []string) (identity string, services []elasti.ElastiService, claims []elasti.ProxyPortClaim) {
	t.Helper()
	useStore(t, flags, func(opened *storecopy.Store) {
		var err error
		if identity, err = opened.Identity.Identity(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
		listed, listedClaims := &elasti.ElastiServiceList{}, &elasti.ProxyPortClaimList{}
		if err := opened.Resources[0].Storage.GetList(t.Context(), opened.Resources[0].Prefix, all, listed); err != nil {
			t.Fatal(err)
		}
		if err := opened.Resources[1].Storage.GetList(t.Context(), opened.Resources[1].Prefix, all, listedClaims); err != nil {
			t.Fatal(err)
		}
		services, claims = listed.Items, listedClaims.Items
	})
	for i := range services {
		services[i].ResourceVersion = ""
	}
	for i := range claims {
		claims[i].ResourceVersion = ""
	}
	return identity, services, claims
}

func mustCopy(t *testing.T, flags ...string) storecopy.Result {
	t.Helper()
	result, err := CopyStorage(t.Context(), parseCopy(t, flags...))
	if err != nil {
		t.Fatalf("copying with %v: %v", flags, err)
	}
	return result
}

func expectCopyError(t *testing.T, flags []string, words ...string) {
	t.Helper()
	_, err := CopyStorage(t.Context(), parseCopy(t, flags...))
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("copying with %v returned %v, want %q", flags, err, word)
		}
	}
}

// expectCopies expects that two stores have the same.
func expectCopies(t *testing.T, from, to []string, wantServices int) {
	t.Helper()
	identity, services, claims := contentOf(t, from)
	copiedIdentity, copiedServices, copiedClaims := contentOf(t, to)
	if identity == "" || copiedIdentity != identity || guard.IsIncomplete(identity) {
		t.Errorf("the identity of the copy is %q, want %q", copiedIdentity, identity)
	}
	if len(services) != wantServices || len(claims) != wantServices {
		t.Errorf("there are %d ElastiServices and %d claims, want %d of each", len(services), len(claims), wantServices)
	}
	if !apiequality.Semantic.DeepEqual(services, copiedServices) || !apiequality.Semantic.DeepEqual(claims, copiedClaims) {
		t.Errorf("the copy has %+v and %+v, want %+v and %+v", copiedServices, copiedClaims, services, claims)
	}
}

func TestStorageIsCopiedThereAndBack(t *testing.T) {
	const services = 40
	first := filepath.Join(t.TempDir(), "first")
	fillStore(t, inEmbedded("from", first), services)
	_, before, _ := contentOf(t, inEmbedded("from", first))
	if want := newStoredService("app-0"); before[0].UID != want.UID || len(before[0].ManagedFields) == 0 || before[0].DeletionTimestamp == nil || before[0].Status.Mode != want.Status.Mode {
		t.Fatalf("stored is %+v", before[0])
	}
	etcd := inEtcd(t)
	result := mustCopy(t, append(inEmbedded("from", first), etcd("to")...)...)
	if result.Complete || result.Copied["elastiservices"] != services || result.Copied["proxyportclaims"] != services {
		t.Errorf("the result is %+v", result)
	}
	expectCopies(t, inEmbedded("from", first), etcd("from"), services)
	if _, after, _ := contentOf(t, inEmbedded("from", first)); !apiequality.Semantic.DeepEqual(before, after) {
		t.Error("the copy changed its source")
	}
	second := filepath.Join(t.TempDir(), "second")
	mustCopy(t, append(etcd("from"), inEmbedded("to", second)...)...)
	expectCopies(t, etcd("from"), inEmbedded("from", second), services)
}

// The server has changed the copy since, which must not be lost when the command is
// repeated by what has started it.
func TestCompleteCopyIsLeftAsItIs(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	fillStore(t, inEmbedded("from", first), 2)
	etcd := inEtcd(t)
	flags := append(inEmbedded("from", first), etcd("to")...)
	mustCopy(t, flags...)
	useStore(t, etcd("from"), func(opened *storecopy.Store) { store(t, &opened.Resources[0], newStoredService("since")) })
	if result := mustCopy(t, append(flags, "--once")...); !result.Complete {
		t.Errorf("the result is %+v", result)
	}
	if _, services, _ := contentOf(t, etcd("from")); len(services) != 3 {
		t.Errorf("the copy has %d ElastiServices, want 3", len(services))
	}
	mustCopy(t, append(flags, "--overwrite")...)
	expectCopies(t, inEmbedded("from", first), etcd("from"), 2)
}

// The way back to a store that was copied, after the copy was used: the store has the same
// identity, and is older.
func TestStoreThatWasUsedSinceIsNotTakenForACompleteCopy(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	fillStore(t, inEmbedded("from", first), 3)
	etcd := inEtcd(t)
	mustCopy(t, append(inEmbedded("from", first), etcd("to")...)...)
	back := append(etcd("from"), inEmbedded("to", first)...)
	if result := mustCopy(t, back...); !result.Complete {
		t.Errorf("the result for two stores that have the same is %+v", result)
	}
	useStore(t, etcd("from"), func(opened *storecopy.Store) {
		services := &opened.Resources[0]
		if err := services.Storage.Delete(t.Context(), services.Prefix+"shop/app-1", services.New(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"since", "then"} {
			store(t, services, newStoredService(name))
		}
		store(t, &opened.Resources[1], &elasti.ProxyPortClaim{ObjectMeta: metav1.ObjectMeta{Name: "20000", UID: "since"}, Spec: elasti.ProxyPortClaimSpec{ProxyPort: 20000, Port: 80}})
	})
	expectCopyError(t, back, "3 elastiservices", "shop/app-1", "1 proxyportclaims", "--overwrite")
	if _, services, _ := contentOf(t, inEmbedded("from", first)); len(services) != 3 {
		t.Errorf("the store has %d ElastiServices after the error, want 3", len(services))
	}
	mustCopy(t, append(back, "--overwrite")...)
	expectCopies(t, etcd("from"), inEmbedded("from", first), 4)
}

func TestAnotherStoreIsNotOverwrittenByAccident(t *testing.T) {
	first := filepath.Join(t.TempDir(), "first")
	fillStore(t, inEmbedded("from", first), 2)
	for name, prepare := range map[string]func(opened *storecopy.Store){
		"objects": func(opened *storecopy.Store) { store(t, &opened.Resources[0], newStoredService("other")) },
		"identity": func(opened *storecopy.Store) {
			if err := opened.Identity.ReplaceIdentity(t.Context(), "", "other"); err != nil {
				t.Fatal(err)
			}
		},
		"incomplete copy": func(opened *storecopy.Store) {
			if err := opened.Identity.ReplaceIdentity(t.Context(), "", guard.Incomplete("other")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			etcd := inEtcd(t)
			useStore(t, etcd("from"), prepare)
			flags := append(inEmbedded("from", first), etcd("to")...)
			expectCopyError(t, flags, "another store already", "--overwrite")
			mustCopy(t, append(flags, "--overwrite")...)
			expectCopies(t, inEmbedded("from", first), etcd("from"), 2)
		})
	}
}

// failingStorage fails after some writes, as when the command is killed.
type failingStorage struct {
	storage.Interface
	left atomic.Int32
}

func (s *failingStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	if s.left.Add(-1) < 0 {
		return errors.New("interrupted")
	}
	return s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cached)
}

func TestInterruptedCopyIsContinued(t *testing.T) {
	const services = 3
	first := filepath.Join(t.TempDir(), "first")
	fillStore(t, inEmbedded("from", first), services)
	etcd := inEtcd(t)
	useStore(t, inEmbedded("from", first), func(from *storecopy.Store) {
		useStore(t, etcd("from"), func(to *storecopy.Store) {
			failing := &failingStorage{Interface: to.Resources[1].Storage}
			failing.left.Store(1)
			to.Resources[1].Storage = failing
			if _, err := storecopy.Copy(t.Context(), from, to, storecopy.Options{}); err == nil || !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("the copy ended with %v", err)
			}
		})
		// The source is used again before the copy is continued.
		if err := from.Resources[0].Storage.Delete(t.Context(), from.Resources[0].Prefix+"shop/app-1", from.Resources[0].New(), nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		store(t, &from.Resources[0], newStoredService("since"))
	})
	identity, _, _ := contentOf(t, etcd("from"))
	if !guard.IsIncomplete(identity) {
		t.Errorf("the interrupted copy has the identity %q", identity)
	}
	expectCopyError(t, append(etcd("from"), inEmbedded("to", filepath.Join(t.TempDir(), "second"))...), "incomplete copy itself")
	mustCopy(t, append(inEmbedded("from", first), etcd("to")...)...)
	expectCopies(t, inEmbedded("from", first), etcd("from"), services)
}

func TestCopyOfNothingIsAMistake(t *testing.T) {
	expectCopyError(t, append(inEmbedded("from", filepath.Join(t.TempDir(), "empty")), inEtcd(t)("to")...), "neither an identity nor objects", "check")
}

func TestStoreInUseIsNotCopied(t *testing.T) {
	dataDir := t.TempDir()
	server, err := embedded.Start(t.Context(), embedded.Options{DataDir: dataDir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	expectCopyError(t, append(inEmbedded("from", dataDir), inEtcd(t)("to")...), dataDir, "in use")
}
