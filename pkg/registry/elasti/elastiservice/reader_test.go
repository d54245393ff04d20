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

package elastiservice_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// readerTimeout is how long a test waits for an event.
const readerTimeout = 30 * time.Second

// createNamed makes an ElastiService with a label.
func (s *server) createNamed(t *testing.T, inNamespace, name string) *v1alpha1.ElastiService {
	t.Helper()
	object := newElastiService(name, name)
	object.Namespace = inNamespace
	object.Labels = map[string]string{"team": "checkout"}
	created, err := s.client.ElastiV1alpha1().ElastiServices(inNamespace).Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func awaitEvent(t *testing.T, watching watch.Interface) watch.Event {
	t.Helper()
	select {
	case event, open := <-watching.ResultChan():
		if !open {
			t.Fatal("the watch ended")
		}
		return event
	case <-time.After(readerTimeout):
		t.Fatal("there is no event")
	}
	return watch.Event{}
}

// awaitEnd returns when a watch has ended.
func awaitEnd(t *testing.T, watching watch.Interface) {
	t.Helper()
	deadline := time.After(readerTimeout)
	for open := true; open; {
		select {
		case _, open = <-watching.ResultChan():
		case <-deadline:
			t.Fatal("the watch does not end")
		}
	}
}

func TestReaderListsWhatClientsList(t *testing.T) {
	s := startServer(t, nil)
	s.createNamed(t, namespace, "cart")
	s.createNamed(t, namespace, "till")
	s.createNamed(t, "elsewhere", "cart")
	// Otherwise one list of the cache may have more than the next.
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, readerTimeout, true, func(ctx context.Context) (bool, error) {
		cached, err := s.reader.List(ctx, metav1.NamespaceAll, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(cached.Items) == 3, err
	})
	if err != nil {
		t.Fatalf("waiting until the watch cache has all: %v", err)
	}
	for _, inNamespace := range []string{namespace, "elsewhere", "empty", metav1.NamespaceAll} {
		for what, options := range map[string]metav1.ListOptions{
			"everything":     {},
			"one field":      {FieldSelector: "spec.service=cart"},
			"of the cache":   {ResourceVersion: "0"},
			"the first page": {Limit: 1},
			"another label":  {LabelSelector: "team!=checkout"},
		} {
			want, err := s.client.ElastiV1alpha1().ElastiServices(inNamespace).List(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}
			got, err := s.reader.List(t.Context(), inNamespace, options)
			if err != nil {
				t.Fatal(err)
			}
			// Both may be of different moments, and name the same next page.
			want.Continue, got.Continue = strconv.FormatBool(want.Continue != ""), strconv.FormatBool(got.Continue != "")
			want.TypeMeta, got.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("%s in namespace %q:\n%s", what, inNamespace, diff.Diff(want, got))
			}
		}
	}
}

// watch starts a number of watches as a client, which end with the test.
func (s *server) watch(t *testing.T, number int, options metav1.ListOptions) (watches []watch.Interface) {
	t.Helper()
	for range number {
		started, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Watch(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.Stop)
		watches = append(watches, started)
	}
	return watches
}

// compareEvents checks that the next event of the reader is of a kind and the one that
// clients get, and changes its object.
func compareEvents(t *testing.T, kind watch.EventType, watching watch.Interface, others []watch.Interface) {
	t.Helper()
	got := awaitEvent(t, watching)
	if got.Type != kind {
		t.Errorf("there is an event %s, want %s", got.Type, kind)
	}
	for _, other := range others {
		want := awaitEvent(t, other)
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("the event differs from what a client sees:\n%s", diff.Diff(want, got))
		}
	}
	// The reader may change it.
	if elastiService, ok := got.Object.(*v1alpha1.ElastiService); ok {
		elastiService.Labels["team"] = "changed by the reader"
		elastiService.Spec.Service = "changed by the reader"
	} else {
		t.Errorf("the object is a %T", got.Object)
	}
}

func TestReaderWatchesWhatClientsWatch(t *testing.T) {
	s := startServer(t, nil)
	s.createNamed(t, namespace, "cart")
	s.createNamed(t, "elsewhere", "cart")
	options := metav1.ListOptions{SendInitialEvents: ptr.To(true), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true}
	watching, err := s.reader.Watch(t.Context(), namespace, options)
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	// The watch cache shares events from three watches on.
	others := s.watch(t, 3, options)
	compare := func(kind watch.EventType) { t.Helper(); compareEvents(t, kind, watching, others) }
	compare(watch.Added)
	bookmark := awaitEvent(t, watching)
	if bookmark.Type != watch.Bookmark || bookmark.Object.(*v1alpha1.ElastiService).Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Errorf("the initial events end with %v", bookmark)
	}
	for _, other := range others {
		if theirs := awaitEvent(t, other); theirs.Type != watch.Bookmark {
			t.Errorf("the initial events of a client end with %v", theirs)
		}
	}

	s.createNamed(t, namespace, "till")
	compare(watch.Added)
	client := s.client.ElastiV1alpha1().ElastiServices(namespace)
	till, err := client.Get(t.Context(), "till", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	till.Labels["paused"] = "no"
	if _, err := client.Update(t.Context(), till, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	compare(watch.Modified)
	if err := client.Delete(t.Context(), "till", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// Its finalizer is still there.
	compare(watch.Modified)
	if till, err = client.Get(t.Context(), "till", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	till.Finalizers = nil
	if _, err := client.Update(t.Context(), till, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	compare(watch.Deleted)
	cart, err := client.Get(t.Context(), "cart", metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	if cart.Labels["team"] != "checkout" || cart.Spec.Service != "cart" {
		t.Errorf("what the reader changed is what others read: %v", cart)
	}
}

func TestReaderDoesNotShareWhatItLists(t *testing.T) {
	s := startServer(t, nil)
	s.createNamed(t, namespace, "cart")
	for range 2 {
		list, err := s.reader.List(t.Context(), namespace, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].Labels["team"] != "checkout" {
			t.Fatalf("the list is %v", list.Items)
		}
		list.Items[0].Labels["team"] = "changed by the reader"
	}
}

func TestReaderReportsThatTheStoreHasNotReachedAVersion(t *testing.T) {
	s := startServer(t, nil)
	newest, err := strconv.ParseUint(s.createNamed(t, namespace, "cart").ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.reader.Watch(t.Context(), namespace, metav1.ListOptions{ResourceVersion: strconv.FormatUint(newest+1000, 10)})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("the watch ended with %v, want that the version is expired", err)
	}
}

// A watch closes its channel when its goroutine has nothing left to do.
func TestWatchesOfTheReaderEnd(t *testing.T) {
	s := startServer(t, nil)
	s.createNamed(t, namespace, "cart")
	s.createNamed(t, namespace, "till")
	// The first event is not read, so that each watch ends with a pending event.
	ctx, cancel := context.WithCancel(t.Context())
	for what, end := range map[string]struct {
		options metav1.ListOptions
		ctx     context.Context
		end     func(watch.Interface)
	}{
		"stopped, twice": {ctx: t.Context(), end: func(watching watch.Interface) { watching.Stop(); watching.Stop() }},
		"its context":    {ctx: ctx, end: func(watch.Interface) { cancel() }},
		"its timeout":    {ctx: t.Context(), options: metav1.ListOptions{TimeoutSeconds: ptr.To[int64](1)}, end: func(watch.Interface) {}},
	} {
		watching, err := s.reader.Watch(end.ctx, namespace, end.options)
		if err != nil {
			t.Fatal(err)
		}
		end.end(watching)
		awaitEnd(t, watching)
		t.Log("ended:", what)
	}
}
