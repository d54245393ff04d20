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

package guard

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// cell holds an identity: that of a store, or the recorded one.
type cell struct {
	mu    sync.Mutex
	value string
	err   error
}

func (c *cell) get() (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.err
}

func (c *cell) replace(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if c.value != from {
		return ErrChanged
	}
	c.value = to
	return nil
}

// set makes the cell that of another store, or with an error of none that responds.
func (c *cell) set(value string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.err = value, err
}

type memoryStore struct {
	cell
	// filled says that the store has objects.
	filled bool
}

func (s *memoryStore) IsEmpty(context.Context) (bool, error) { return !s.filled, nil }

func (s *memoryStore) Identity(context.Context) (string, error) { return s.get() }
func (s *memoryStore) ReplaceIdentity(_ context.Context, from, to string) error {
	return s.replace(from, to)
}

type memoryRecord struct{ cell }

func (r *memoryRecord) Recorded(context.Context) (string, error) { return r.get() }
func (r *memoryRecord) Record(_ context.Context, from, to string) error {
	return r.replace(from, to)
}
func (*memoryRecord) String() string { return "ConfigMap system/store" }

// testbed is a store and a record of an installation.
type testbed struct {
	store  memoryStore
	record memoryRecord
}

func newTestbed(identity, recorded string) *testbed {
	w := &testbed{}
	w.store.value, w.record.value = identity, recorded
	return w
}

// run runs a guard until the end of the test.
func (w *testbed) run(t *testing.T, accept string) *Guard {
	t.Helper()
	guard := New(Options{Store: &w.store, Recorder: &w.record, Accept: accept})
	w.start(t, guard)
	return guard
}

func (*testbed) start(t *testing.T, guard *Guard) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := guard.Run(ctx); err != nil {
			t.Errorf("the guard returned %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// advance lets all checks happen that are due.
func advance() {
	<-time.After(2 * checkInterval)
	synctest.Wait()
}

func expectUsed(t *testing.T, guard *Guard) {
	t.Helper()
	if problem := guard.Problem(); problem != nil {
		t.Errorf("the store is not used: %v", problem)
	}
}

func expectNotUsed(t *testing.T, guard *Guard, words ...string) {
	t.Helper()
	problem := guard.Problem()
	if problem == nil {
		t.Error("the store is used")
		return
	}
	for _, word := range words {
		if !strings.Contains(problem.Error(), word) {
			t.Errorf("the problem does not say %q: %v", word, problem)
		}
	}
}

func TestNewInstallationRecordsItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("", "")
		guard := w.run(t, "")
		advance()
		expectUsed(t, guard)
		if w.store.value == "" || w.record.value != w.store.value {
			t.Errorf("the store is %q, recorded is %q", w.store.value, w.record.value)
		}
	})
}

// Versions without identities have used this store, or another one.
func TestFirstStoreIsNotAnEmptyOneInTheCourseOfAnUpgrade(t *testing.T) {
	for name, test := range map[string]struct {
		filled   bool
		evidence string
		accept   string
		want     bool
	}{
		"a new installation":              {want: true},
		"the store of the version before": {filled: true, evidence: "Service a/b", want: true},
		"another store":                   {evidence: "Service a/b"},
		"another store, on purpose":       {evidence: "Service a/b", accept: Unrecorded, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestbed("", "")
				w.store.filled = test.filled
				guard := New(Options{Store: &w.store, Recorder: &w.record, Accept: test.accept, Evidence: func(context.Context) (string, error) { return test.evidence, nil }})
				w.start(t, guard)
				advance()
				if test.want {
					expectUsed(t, guard)
					return
				}
				expectNotUsed(t, guard, "Service a/b", "storage copy", "--accept-new-store=unrecorded")
				if w.store.value != "" || w.record.value != "" {
					t.Errorf("the store became %q, recorded is %q", w.store.value, w.record.value)
				}
			})
		})
	}
}

// A store that has an identity already is that of a server that ended before it made the
// record, of an installation before, or a copy.
func TestStoreWithAnIdentityIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("first", "")
		guard := w.run(t, "")
		advance()
		expectUsed(t, guard)
		if w.store.value != "first" || w.record.value != "first" {
			t.Errorf("the store is %q, recorded is %q", w.store.value, w.record.value)
		}
	})
}

func TestServersThatStartAtOnceAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("", "")
		guards := []*Guard{w.run(t, ""), w.run(t, ""), w.run(t, "")}
		// One server has another store, by mistake.
		other := New(Options{Store: &memoryStore{}, Recorder: &w.record})
		advance()
		w.start(t, other)
		advance()
		for _, guard := range guards {
			expectUsed(t, guard)
		}
		if w.store.value == "" || w.record.value != w.store.value {
			t.Errorf("the store is %q, recorded is %q", w.store.value, w.record.value)
		}
		expectNotUsed(t, other, "the store is empty")
	})
}

func TestAnotherStoreIsNotUsedUntilItIsAccepted(t *testing.T) {
	for name, identity := range map[string]string{"empty": "", "another one": "second"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestbed(identity, "first")
				for _, accept := range []string{"", "third"} {
					guard := w.run(t, accept)
					advance()
					expectNotUsed(t, guard, identity, "uses the store first", "ConfigMap system/store", "--accept-new-store=first", "storage copy")
					if guard.NotBegun() == nil {
						t.Error("the server is ready")
					}
				}
				if w.store.value != identity || w.record.value != "first" {
					t.Errorf("the store became %q, recorded is %q", w.store.value, w.record.value)
				}
				guard := w.run(t, "first")
				advance()
				expectUsed(t, guard)
				if w.store.value == "" || w.store.value == "first" || w.record.value != w.store.value {
					t.Errorf("the accepted store is %q, recorded is %q", w.store.value, w.record.value)
				}
			})
		})
	}
}

func TestIncompleteCopyIsNotUsed(t *testing.T) {
	for _, recorded := range []string{"", "first", "second"} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestbed(Incomplete("first"), recorded)
			guard := w.run(t, recorded)
			advance()
			expectNotUsed(t, guard, "incomplete copy of the store first", "repeat")
		})
	}
}

func TestStoreThatCannotBeReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("first", "first")
		away := errors.New("connection refused")
		w.store.set("first", away)
		guard := w.run(t, "")
		advance()
		expectNotUsed(t, guard, "connection refused")
		w.store.set("first", nil)
		advance()
		expectUsed(t, guard)
		// While it is in use, its loss is not that of another store.
		w.store.set("", away)
		advance()
		expectUsed(t, guard)
		w.store.set("", nil)
		advance()
		expectNotUsed(t, guard, "the store is empty")
		if problem := guard.NotBegun(); problem != nil {
			t.Errorf("a server that has begun is not ready: %v", problem)
		}
		w.record.set("first", away)
		w.store.set("first", nil)
		advance()
		expectNotUsed(t, guard)
		w.record.set("first", nil)
		advance()
		expectUsed(t, guard)
	})
}

func TestControllerRunsWhileTheStoreIsTheRightOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("second", "first")
		guard := w.run(t, "")
		ctx, cancel := context.WithCancel(t.Context())
		runs, running := 0, false
		ended := make(chan error, 1)
		go func() {
			ended <- guard.While(ctx, func(ctx context.Context) error {
				runs++
				running = true
				<-ctx.Done()
				running = false
				return ctx.Err()
			})
		}()
		expect := func(wantRuns int, wantRunning bool) {
			t.Helper()
			advance()
			if runs != wantRuns || running != wantRunning {
				t.Errorf("it was started %d times and runs: %t; want %d, %t", runs, running, wantRuns, wantRunning)
			}
		}
		expect(0, false)
		w.store.set("first", nil)
		expect(1, true)
		w.store.set("first", errors.New("connection refused"))
		expect(1, true)
		w.store.set("second", nil)
		expect(1, false)
		w.store.set("first", nil)
		expect(2, true)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestEndOfTheControllerIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := newTestbed("first", "first").run(t, "")
		failed := errors.New("failed")
		if err := guard.While(t.Context(), func(context.Context) error { return failed }); !errors.Is(err, failed) {
			t.Errorf("it ended with %v, want %v", err, failed)
		}
	})
}

// countedStorage is a storage that is ready when ready is true.
type countedStorage struct {
	storage.Interface
	ready *atomic.Bool
}

func (s countedStorage) ReadinessCheck() error {
	if !s.ready.Load() {
		return errors.New("the cache is empty")
	}
	return nil
}

func (countedStorage) Get(context.Context, string, storage.GetOptions, runtime.Object) error {
	return nil
}

// A watch cache that has listed another store, or the right one before it was away, must
// not be used for the right one.
func TestStoragesBeginAnewEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestbed("second", "first")
		guard := New(Options{Store: &w.store, Recorder: &w.record})
		built, destroyed := 0, 0
		var ready atomic.Bool
		ready.Store(true)
		base := generic.RESTOptions{Decorator: func(*storagebackend.ConfigForResource, string, func(runtime.Object) (string, error), func() runtime.Object, func() runtime.Object, storage.AttrFunc, storage.IndexerFuncs, *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			built++
			return countedStorage{ready: &ready}, func() { destroyed++ }, nil
		}}
		options, err := guard.Wrap(base).GetRESTOptions(schema.GroupResource{Resource: "things"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		wrapped, destroy, err := options.Decorator(nil, "", nil, nil, nil, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		get := func() error { return wrapped.Get(t.Context(), "key", storage.GetOptions{}, nil) }
		if err := get(); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("reading before the first check returned %v", err)
		}
		w.start(t, guard)
		expect := func(wantBuilt, wantDestroyed int, wantReadable bool) {
			t.Helper()
			advance()
			err := get()
			if built != wantBuilt || destroyed != wantDestroyed || (err == nil) != wantReadable {
				t.Errorf("made %d, destroyed %d, reading returned %v; want %d, %d, readable: %t", built, destroyed, err, wantBuilt, wantDestroyed, wantReadable)
			}
			if err != nil && !apierrors.IsServiceUnavailable(err) {
				t.Errorf("reading returned %v, want 503", err)
			}
		}
		expect(0, 0, false)
		w.store.set("first", nil)
		expect(1, 0, true)
		w.store.set("second", nil)
		expect(1, 1, false)
		ready.Store(false)
		w.store.set("first", nil)
		<-time.After(2 * retryInterval)
		synctest.Wait()
		expectNotUsed(t, guard)
		ready.Store(true)
		expect(2, 1, true)
		destroy()
		if destroyed != 2 {
			t.Errorf("%d of 2 were destroyed", destroyed)
		}
	})
}
