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

package storage

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// requests counts those that reach the host cluster.
type requests struct {
	http.RoundTripper
	lists, writes atomic.Int64
}

func (r *requests) RoundTrip(request *http.Request) (*http.Response, error) {
	switch {
	case request.Method == http.MethodGet && request.URL.Path == "/apis/storage.elasti.truefoundry.com/v1/storedpods" && request.URL.Query().Get("watch") == "":
		r.lists.Add(1)
	case request.Method == http.MethodPatch || request.Method == http.MethodPost || request.Method == http.MethodPut:
		r.writes.Add(1)
	}
	return r.RoundTripper.RoundTrip(request)
}

func (r *requests) wrap(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		r.RoundTripper = next
		return r
	})
}

func create(t *testing.T, store storage.Interface, namespace, name string) *example.Pod {
	t.Helper()
	created := &example.Pod{}
	if err := store.Create(t.Context(), podPrefix+namespace+"/"+name, newPod(namespace, name), created, 0); err != nil {
		t.Fatal(err)
	}
	return created
}

func list(t *testing.T, store storage.Interface, opts storage.ListOptions) *example.PodList {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		limit, continuation := opts.Predicate.Limit, opts.Predicate.Continue
		opts.Predicate = storage.Everything
		opts.Predicate.Limit, opts.Predicate.Continue = limit, continuation
	}
	pods := &example.PodList{}
	if err := store.GetList(t.Context(), podPrefix, opts, pods); err != nil {
		t.Fatal(err)
	}
	return pods
}

// A list without a version has the last writes of other replicas. It comes from the watch
// cache: no list reaches the host cluster.
func TestCurrentListsComeFromTheWatchCache(t *testing.T) {
	writer := newStack(t, setup{})
	counted := &requests{}
	reader := newReplica(t, setup{cached: true, wrap: counted.wrap})
	before := counted.lists.Load()
	for i := range 20 {
		create(t, writer, "ns", "pod-"+strconv.Itoa(i))
		if pods := list(t, reader, storage.ListOptions{}); len(pods.Items) != i+1 {
			t.Fatalf("a list after the creation of pod %d has %d pods", i, len(pods.Items))
		}
	}
	if lists := counted.lists.Load() - before; lists != 0 {
		t.Errorf("%d lists reached the host cluster", lists)
	}
}

// Concurrent readers share the writes that determine the current version, and without a
// reader there are no such writes.
func TestCurrentReadsShareTheirWrites(t *testing.T) {
	const readers = 50
	counted := &requests{}
	store := newStack(t, setup{cached: true, wrap: counted.wrap})
	list(t, store, storage.ListOptions{})
	before := counted.writes.Load()
	var reading sync.WaitGroup
	for range readers {
		reading.Go(func() {
			pods := &example.PodList{}
			if err := store.GetList(t.Context(), podPrefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything}, pods); err != nil {
				t.Error(err)
			}
		})
	}
	reading.Wait()
	if writes := counted.writes.Load() - before; writes == 0 || writes > readers/2 {
		t.Errorf("%d readers at once made %d writes", readers, writes)
	}
	before = counted.writes.Load()
	list(t, store, storage.ListOptions{ResourceVersion: "0"})
	if writes := counted.writes.Load() - before; writes != 0 {
		t.Errorf("a list that need not be current made %d writes", writes)
	}
}

// All pages of a list have one version, regardless of concurrent writes.
func TestContinuedListsAreOfOneVersion(t *testing.T) {
	for name, options := range map[string]setup{"uncached": {}, "cached": {cached: true}} {
		t.Run(name, func(t *testing.T) {
			store := newStack(t, options)
			for i := range 5 {
				create(t, store, "ns", fmt.Sprintf("pod-%d", i))
			}
			first := list(t, store, storage.ListOptions{Predicate: storage.SelectionPredicate{Limit: 2}})
			if len(first.Items) != 2 || first.Continue == "" || ptr.Deref(first.RemainingItemCount, 0) != 3 {
				t.Fatalf("the first page has %d pods, the token %q and %v remaining", len(first.Items), first.Continue, first.RemainingItemCount)
			}
			create(t, store, "ns", "pod-2a")
			rest := list(t, store, storage.ListOptions{Predicate: storage.SelectionPredicate{Continue: first.Continue}})
			if len(rest.Items) != 3 || rest.ResourceVersion != first.ResourceVersion {
				t.Errorf("the second page has %d pods as of %s, after a first one as of %s", len(rest.Items), rest.ResourceVersion, first.ResourceVersion)
			}
		})
	}
}

func TestListsAreOfTheRequestedVersion(t *testing.T) {
	store := newStack(t, setup{})
	one := create(t, store, "ns", "one")
	two := create(t, store, "ns", "two")
	for _, test := range []struct {
		version string
		match   metav1.ResourceVersionMatch
		want    int
	}{
		{one.ResourceVersion, metav1.ResourceVersionMatchExact, 1},
		{one.ResourceVersion, metav1.ResourceVersionMatchNotOlderThan, 2},
		{two.ResourceVersion, metav1.ResourceVersionMatchExact, 2},
		{"", "", 2},
	} {
		pods := list(t, store, storage.ListOptions{ResourceVersion: test.version, ResourceVersionMatch: test.match})
		if len(pods.Items) != test.want {
			t.Errorf("the list as of %q, %q, has %d pods, want %d", test.version, test.match, len(pods.Items), test.want)
		}
		if test.match == metav1.ResourceVersionMatchExact && pods.ResourceVersion != test.version {
			t.Errorf("the list as of %s says that it is of %s", test.version, pods.ResourceVersion)
		}
	}
}

func TestWatchesBeginWithWhatIsStored(t *testing.T) {
	for name, options := range map[string]setup{"uncached": {}, "cached": {cached: true}} {
		t.Run(name, func(t *testing.T) {
			store := createAwaiting{newStack(t, options)}
			created := &example.Pod{}
			if err := store.Create(t.Context(), podPrefix+"ns/one", newPod("ns", "one"), created, 0); err != nil {
				t.Fatal(err)
			}
			watching, err := store.Watch(t.Context(), podPrefix+"ns/one", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything})
			if err != nil {
				t.Fatal(err)
			}
			defer watching.Stop()
			if event := next(t, watching); event.Type != watch.Added || podOf(event).ResourceVersion != created.ResourceVersion {
				t.Errorf("the first event is %v", event)
			}
			deleted := &example.Pod{}
			if err := store.Delete(t.Context(), podPrefix+"ns/one", deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if event := next(t, watching); event.Type != watch.Deleted || podOf(event).ResourceVersion != deleted.ResourceVersion {
				t.Errorf("the event of the deletion is %v", event)
			}
		})
	}
}

// A version that the host cluster has compacted gets a response that makes clients list
// again.
func TestExpiredVersionsAreReported(t *testing.T) {
	for name, options := range map[string]setup{"uncached": {}, "cached": {cached: true}} {
		t.Run(name, func(t *testing.T) {
			store := newStack(t, options)
			watching, err := store.Watch(t.Context(), podPrefix, storage.ListOptions{Recursive: true, Predicate: storage.Everything, ResourceVersion: "1"})
			if err != nil {
				t.Fatal(err)
			}
			defer watching.Stop()
			if event := next(t, watching); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
				t.Errorf("the first event is %v", event)
			}
		})
	}
}

// A watch-list has the last writes of other replicas, then a bookmark for the end of the
// list, and then changes.
func TestWatchListsAreCurrent(t *testing.T) {
	writer := newStack(t, setup{})
	counted := &requests{}
	reader := newReplica(t, setup{cached: true, wrap: counted.wrap})
	created := create(t, writer, "ns", "one")
	before := counted.lists.Load()
	opts := storage.ListOptions{Recursive: true, Predicate: storage.Everything, SendInitialEvents: ptr.To(true)}
	opts.Predicate.AllowWatchBookmarks = true
	watching, err := reader.Watch(t.Context(), podPrefix, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	if added := next(t, watching); added.Type != watch.Added || podOf(added).Name != created.Name {
		t.Fatalf("the first event is %v", added)
	}
	end := next(t, watching)
	if end.Type != watch.Bookmark || podOf(end).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Fatalf("the event after the initial ones is %v", end)
	}
	later := create(t, writer, "ns", "two")
	if added := next(t, watching); added.Type != watch.Added || podOf(added).ResourceVersion != later.ResourceVersion {
		t.Errorf("the event of a new pod is %v", added)
	}
	if lists := counted.lists.Load() - before; lists != 0 {
		t.Errorf("%d lists reached the host cluster", lists)
	}
}

func next(t *testing.T, watching watch.Interface) watch.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	select {
	case event, open := <-watching.ResultChan():
		if !open {
			t.Fatal("the watch has ended")
		}
		return event
	case <-ctx.Done():
		t.Fatal("waited in vain for an event")
		return watch.Event{}
	}
}

// podOf returns the pod of an event, which a watch cache wraps.
func podOf(event watch.Event) *example.Pod {
	object := event.Object
	if wrapped, ok := object.(runtime.CacheableObject); ok {
		object = wrapped.GetObject()
	}
	pod, _ := object.(*example.Pod)
	if pod == nil {
		return &example.Pod{}
	}
	return pod
}

// Concurrent updates of one object by several replicas are not lost.
func TestReplicasLoseNoUpdate(t *testing.T) {
	const writers, updates = 8, 10
	replicas := []*stack{newStack(t, setup{cached: true}), newReplica(t, setup{cached: true})}
	create(t, replicas[0], "ns", "counted")
	count := storage.SimpleUpdate(func(object runtime.Object) (runtime.Object, error) {
		pod := object.(*example.Pod)
		done, _ := strconv.Atoi(pod.Annotations["count"])
		pod.Annotations = map[string]string{"count": strconv.Itoa(done + 1)}
		return pod, nil
	})
	var writing sync.WaitGroup
	for i := range writers {
		writing.Go(func() {
			for range updates {
				err := replicas[i%len(replicas)].GuaranteedUpdate(t.Context(), podPrefix+"ns/counted", &example.Pod{}, false, nil, count, nil)
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	stored := &example.Pod{}
	if err := replicas[1].Get(t.Context(), podPrefix+"ns/counted", storage.GetOptions{}, stored); err != nil {
		t.Fatal(err)
	}
	if got := stored.Annotations["count"]; got != strconv.Itoa(writers*updates) {
		t.Errorf("%d updates were acknowledged, and %s are stored", writers*updates, got)
	}
}
