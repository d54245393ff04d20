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

package proxyportclaim_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/proxyportclaim"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

// TestMain keeps the logs of etcd to verbose runs.
func TestMain(m *testing.M) {
	flag.Parse()
	if !testing.Verbose() {
		klog.LogToStderr(false)
		klog.SetOutput(io.Discard)
	}
	os.Exit(m.Run())
}

// startStore runs an etcd and returns how to make the claims of one more server
// that stores there.
func startStore(t *testing.T) (newServer func(watchCache bool) *proxyportclaim.Claims) {
	t.Helper()
	options := startStoreOptions(t)
	return func(watchCache bool) *proxyportclaim.Claims {
		t.Helper()
		claims, err := proxyportclaim.New(options(watchCache))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(claims.Destroy)
		return claims
	}
}

// startStoreOptions runs an etcd and returns the options of a server that stores there.
func startStoreOptions(t *testing.T) func(watchCache bool) generic.RESTOptionsGetter {
	t.Helper()
	endpoint := startEtcd(t)
	return func(watchCache bool) generic.RESTOptionsGetter { return restOptions(endpoint, watchCache, nil) }
}

// startEtcd runs an etcd and returns its endpoint.
func startEtcd(t *testing.T) string {
	t.Helper()
	store, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.Endpoint()
}

// restOptions returns the options of a server that stores in an etcd, and encrypts unless
// there are no transformers.
func restOptions(endpoint string, watchCache bool, transformers value.ResourceTransformers) generic.RESTOptionsGetter {
	etcd := genericoptions.NewRecommendedOptions("/registry/elasti.truefoundry.com", apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion)).Etcd
	etcd.EnableWatchCache = watchCache
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: elasti.GroupName})
	etcd.StorageConfig.Transport.ServerList = []string{endpoint}
	return etcd.CreateRESTOptionsGetter(&genericoptions.SimpleStorageFactory{StorageConfig: etcd.StorageConfig}, transformers)
}

// marking stores objects with a mark in front, as one key encrypts them, and reads those
// with any of its marks.
type marking struct{ mark, previous string }

// TransformerForResource implements value.ResourceTransformers.
func (m marking) TransformerForResource(schema.GroupResource) value.Transformer { return m }

// TransformToStorage implements value.Transformer.
func (m marking) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return append([]byte(m.mark), data...), nil
}

// TransformFromStorage implements value.Transformer.
func (m marking) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	if plain, ok := bytes.CutPrefix(data, []byte(m.mark)); ok {
		return plain, false, nil
	}
	if plain, ok := bytes.CutPrefix(data, []byte(m.previous)); ok && m.previous != "" {
		return plain, true, nil
	}
	return nil, false, errors.New("no key decrypts it")
}

// No client can write claims, so that the server has to when another key is to encrypt them.
func TestClaimsAreEncryptedAgain(t *testing.T) {
	endpoint := startEtcd(t)
	newServer := func(keys marking) *proxyportclaim.Claims {
		t.Helper()
		claims, err := proxyportclaim.New(restOptions(endpoint, false, keys))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(claims.Destroy)
		return claims
	}
	const claimed = 100
	first := newServer(marking{mark: "first:"})
	for port := range int32(claimed) {
		mustClaim(t, first, claimOf(10000+port, 80, "cart"), claimOf(10000+port, 80, "cart"))
	}
	for _, keys := range []marking{{"second:", "first:"}, {"second:", ""}} {
		found, err := newServer(keys).List(t.Context())
		if err != nil || len(found) != claimed {
			t.Errorf("with the keys %+v, %d claims are listed (%v), want %d", keys, len(found), err, claimed)
		}
	}
}

func claimOf(proxyPort, port int32, owner string) v1alpha1.ProxyPortClaimSpec {
	return v1alpha1.ProxyPortClaimSpec{
		ProxyPort: proxyPort,
		Port:      port,
		Owner:     v1alpha1.ProxyPortOwner{Namespace: "shop", Name: owner, UID: types.UID("uid-of-" + owner)},
	}
}

func mustClaim(t *testing.T, claims *proxyportclaim.Claims, wanted, want v1alpha1.ProxyPortClaimSpec) {
	t.Helper()
	if got, err := claims.Claim(t.Context(), wanted); err != nil || got != want {
		t.Errorf("claiming %+v: got %+v (%v), want %+v", wanted, got, err, want)
	}
}

func TestAProxyPortHasOneOwner(t *testing.T) {
	newServer := startStore(t)
	for _, watchCache := range []bool{false, true} {
		t.Run(fmt.Sprintf("watch cache %t", watchCache), func(t *testing.T) {
			one, two := newServer(watchCache), newServer(watchCache)
			cart, stock := claimOf(10000, 80, "cart"), claimOf(10000, 80, "stock")
			mustClaim(t, one, cart, cart)
			mustClaim(t, one, cart, cart)
			mustClaim(t, two, stock, cart)
			mustClaim(t, two, claimOf(10000, 443, "cart"), cart)

			if err := two.Release(t.Context(), 10000, stock.Owner.UID); err != nil {
				t.Errorf("releasing the port of another owner: %v", err)
			}
			mustClaim(t, two, stock, cart)
			for range 2 {
				if err := two.Release(t.Context(), 10000, cart.Owner.UID); err != nil {
					t.Errorf("releasing: %v", err)
				}
			}
			mustClaim(t, two, stock, stock)
			mustClaim(t, one, cart, stock)
			found, err := one.List(t.Context())
			if err != nil || len(found) != 1 || found[0] != stock {
				t.Errorf("listing: got %+v (%v), want %+v", found, err, stock)
			}
			if err := one.Release(t.Context(), 10000, stock.Owner.UID); err != nil {
				t.Error(err)
			}
		})
	}
}

// unreadableStorage is a storage whose objects are there, and whose reads return an error.
type unreadableStorage struct {
	storage.Interface
	err error
}

func (s unreadableStorage) Get(context.Context, string, storage.GetOptions, runtime.Object) error {
	return s.err
}

// unreadableOptions makes unreadableStorage.
type unreadableOptions struct {
	generic.RESTOptionsGetter
	err error
}

func (o unreadableOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := generic.UndecoratedStorage(config, prefix, keyFunc, newFunc, newListFunc, getAttrs, trigger, indexers)
		return unreadableStorage{made, o.err}, destroy, err
	}
	return options, err
}

// newUnreadable returns claims whose reads return an error.
func newUnreadable(t *testing.T, err error) *proxyportclaim.Claims {
	t.Helper()
	claims, newErr := proxyportclaim.New(unreadableOptions{startStoreOptions(t)(false), err})
	if newErr != nil {
		t.Fatal(newErr)
	}
	t.Cleanup(claims.Destroy)
	return claims
}

// It is known that the port is taken, and not which owner has it.
func TestAClaimThatCannotBeReadIsEmpty(t *testing.T) {
	for name, err := range map[string]error{
		"the host cluster has a damaged object": &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError, Message: "its digest does not match its key and data"}},
		"no key decrypts what an etcd has":      storage.NewInternalError(errors.New("no key decrypts it")),
	} {
		t.Run(name, func(t *testing.T) {
			claims := newUnreadable(t, err)
			cart := claimOf(10000, 80, "cart")
			mustClaim(t, claims, cart, cart)
			mustClaim(t, claims, claimOf(10000, 80, "stock"), v1alpha1.ProxyPortClaimSpec{})
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := claims.Claim(ended, cart); err == nil {
				t.Error("a claim that was not looked up is taken for damaged")
			}
		})
	}
}

// The port is not taken for that of a damaged claim, which another port would replace.
func TestAStorageThatDoesNotRespondDamagesNoClaim(t *testing.T) {
	for name, err := range map[string]error{
		"the storage may not be used":    apierrors.NewServiceUnavailable("the store is another one"),
		"the host has an internal error": apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
		"the etcd does not respond":      errors.New("etcdserver: no leader"),
	} {
		t.Run(name, func(t *testing.T) {
			claims := newUnreadable(t, err)
			cart := claimOf(10000, 80, "cart")
			mustClaim(t, claims, cart, cart)
			if got, claimErr := claims.Claim(t.Context(), cart); !errors.Is(claimErr, err) {
				t.Errorf("claiming it again: got %+v (%v), want the error of the storage", got, claimErr)
			}
		})
	}
}

// Two servers want the same few thousand ports at the same time, and release
// some of them again: a port is never given to two.
func TestServersClaimAtTheSameTime(t *testing.T) {
	const ports, workers = 2000, 2
	newServer := startStore(t)
	var mu sync.Mutex
	owners := map[int32]types.UID{}
	group, ctx := errgroup.WithContext(t.Context())
	var servers []*proxyportclaim.Claims
	for range 2 {
		servers = append(servers, newServer(false))
	}
	for number, claims := range servers {
		for worker := range workers {
			owner := fmt.Sprintf("owner-%d-%d", number, worker)
			group.Go(func() error {
				return claimAll(ctx, claims, ports, owner, func(proxyPort int32, uid types.UID) error {
					mu.Lock()
					defer mu.Unlock()
					if other, taken := owners[proxyPort]; taken && uid != "" {
						return fmt.Errorf("port %d was given to %s and to %s", proxyPort, other, uid)
					}
					owners[proxyPort] = uid
					if uid == "" {
						delete(owners, proxyPort)
					}
					return nil
				})
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, claims := range servers {
		found, err := claims.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != ports || len(owners) != ports {
			t.Errorf("%d claims are stored and %d were reported, want %d", len(found), len(owners), ports)
		}
		for _, claim := range found {
			if owners[claim.ProxyPort] != claim.Owner.UID {
				t.Errorf("port %d is stored as that of %s, and was given to %s", claim.ProxyPort, claim.Owner.UID, owners[claim.ProxyPort])
			}
		}
	}
}

// claimAll claims every port that is free, and of those gives every seventh back
// and claims it again if it is still free then. note is called with the owner of each
// claimed port, and with an empty owner for each that is about to be given back.
func claimAll(ctx context.Context, claims *proxyportclaim.Claims, ports int32, owner string, note func(int32, types.UID) error) error {
	for offset := range ports {
		wanted := claimOf(10000+offset, 80, owner)
		for attempt := range 2 {
			got, err := claims.Claim(ctx, wanted)
			if err != nil {
				return err
			}
			if got != wanted {
				break
			}
			if err := note(wanted.ProxyPort, wanted.Owner.UID); err != nil {
				return err
			}
			if attempt > 0 || offset%7 != 0 {
				break
			}
			if err := note(wanted.ProxyPort, ""); err != nil {
				return err
			}
			if err := claims.Release(ctx, wanted.ProxyPort, wanted.Owner.UID); err != nil {
				return err
			}
		}
	}
	return nil
}
