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

package etcd_test

import (
	"errors"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/etcd"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

func newIdentity(t *testing.T, endpoint, prefix string) *etcd.Identity {
	t.Helper()
	identity, err := etcd.NewIdentity(&storagebackend.Config{
		Prefix:    prefix,
		Transport: storagebackend.TransportConfig{ServerList: []string{endpoint}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := identity.Close(); err != nil {
			t.Error(err)
		}
	})
	return identity
}

func expectIdentity(t *testing.T, identity guard.Store, want string) {
	t.Helper()
	if got, err := identity.Identity(t.Context()); err != nil || got != want {
		t.Errorf("the identity is %q (%v), want %q", got, err, want)
	}
}

func TestIdentityIsReplacedOnce(t *testing.T) {
	store, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	identity := newIdentity(t, store.Endpoint(), "/registry/one")
	expectIdentity(t, identity, "")
	if err := identity.ReplaceIdentity(t.Context(), "first", "second"); !errors.Is(err, guard.ErrChanged) {
		t.Errorf("replacing what is not there returned %v", err)
	}
	// Several servers give the store an identity at the same time.
	var mu sync.Mutex
	var starting sync.WaitGroup
	given := []string{}
	for _, wanted := range []string{"a", "b", "c"} {
		starting.Go(func() {
			err := newIdentity(t, store.Endpoint(), "registry/one/").ReplaceIdentity(t.Context(), "", wanted)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				given = append(given, wanted)
			} else if !errors.Is(err, guard.ErrChanged) {
				t.Error(err)
			}
		})
	}
	starting.Wait()
	if len(given) != 1 {
		t.Fatalf("%v were given", given)
	}
	expectIdentity(t, identity, given[0])
	other := newIdentity(t, store.Endpoint(), "/registry/two")
	expectIdentity(t, other, "")
	expectEmpty := func(want bool) {
		t.Helper()
		if empty, err := identity.IsEmpty(t.Context()); err != nil || empty != want {
			t.Errorf("the store is empty: %t (%v), want %t", empty, err, want)
		}
	}
	expectEmpty(true)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{store.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), "/registry/one/things/a", "a"); err != nil {
		t.Fatal(err)
	}
	expectEmpty(false)
	if empty, err := other.IsEmpty(t.Context()); err != nil || !empty {
		t.Errorf("the other store is empty: %t (%v)", empty, err)
	}
	if err := identity.ReplaceIdentity(t.Context(), given[0], "next"); err != nil {
		t.Error(err)
	}
	expectIdentity(t, identity, "next")
}
