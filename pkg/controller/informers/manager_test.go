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

package informers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// server serves ConfigMaps, or fails to.
type server struct {
	mu      sync.Mutex
	failing error
	objects map[string]*corev1.ConfigMap
	version int
	watches []*watch.RaceFreeFakeWatcher
	lists   int
	// changes are the calls of Changed: the names of objects that changed or
	// appeared, and those that were deleted, with a minus.
	changes []string
	// deleted are the names of the objects whose deletion was reported.
	deleted []string
	synced  int
}

func newServer() *server { return &server{objects: map[string]*corev1.ConfigMap{}} }

// IsWatchListSemanticsUnSupported reports that lists are not streamed.
func (s *server) IsWatchListSemanticsUnSupported() bool { return true }

func (s *server) source() Source {
	return Source{
		Key:     Key{Resource: configMaps},
		Client:  s,
		Example: &corev1.ConfigMap{},
		List: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			if s.failing != nil {
				return nil, s.failing
			}
			list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
			for _, object := range s.objects {
				list.Items = append(list.Items, *object.DeepCopy())
			}
			return list, nil
		},
		Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.failing != nil {
				return nil, s.failing
			}
			watcher := watch.NewRaceFreeFake()
			s.watches = append(s.watches, watcher)
			return watcher, nil
		},
		Transform: func(object any) (any, error) {
			object.(*corev1.ConfigMap).Data = nil
			return object, nil
		},
		Changed: func(before, after any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if after == nil {
				s.changes = append(s.changes, "-"+before.(*corev1.ConfigMap).Name)
			} else {
				s.changes = append(s.changes, after.(*corev1.ConfigMap).Name)
			}
		},
		Deleted: func(last any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.deleted = append(s.deleted, last.(*corev1.ConfigMap).Name)
		},
		Synced: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.synced++
		},
	}
}

func (s *server) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	_, known := s.objects[name]
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(s.version)}, Data: map[string]string{"large": "value"}}
	s.objects[name] = object
	for _, watcher := range s.watches {
		if known {
			watcher.Modify(object.DeepCopy())
		} else {
			watcher.Add(object.DeepCopy())
		}
	}
}

// remove removes an object, and reports something to each watch.
func (s *server) remove(name string, report func(*watch.RaceFreeFakeWatcher, *corev1.ConfigMap)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object := s.objects[name].DeepCopy()
	object.ResourceVersion = strconv.Itoa(s.version)
	delete(s.objects, name)
	for _, watcher := range s.watches {
		report(watcher, object)
	}
}

// fail makes requests fail from now on, and open watches end.
func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
	for _, watcher := range s.watches {
		watcher.Stop()
	}
	s.watches = nil
}

// takeChanges returns the changes since the last time, each once.
func (s *server) takeChanges() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := slices.Compact(slices.Sorted(slices.Values(s.changes)))
	s.changes = nil
	return changes
}

func startManager(t *testing.T) (*Manager, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	manager := New(Options{Metrics: NewMetrics(registry)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return manager, registry
}

func acquire(t *testing.T, manager *Manager, server *server) *Handle {
	t.Helper()
	handle, err := manager.Acquire(server.source())
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

// In a synctest bubble every goroutine of a test has to end: a leak fails it.

func TestOneWatchForAllUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.put("a")
		manager, registry := startManager(t)
		var handles []*Handle
		for range 10 {
			handles = append(handles, acquire(t, manager, server))
		}
		<-handles[9].Synced()
		synctest.Wait()
		if server.lists != 1 || len(server.watches) != 1 {
			t.Errorf("%d lists, %d watches, want one of each", server.lists, len(server.watches))
		}
		object, ok := handles[3].Get("", "a")
		if !ok || object.(*corev1.ConfigMap).Data != nil {
			t.Errorf("got %+v, %t, want what the transform leaves", object, ok)
		}
		server.put("b")
		server.put("a")
		synctest.Wait()
		if got, want := server.takeChanges(), []string{"a", "b"}; !slices.Equal(got, want) {
			t.Errorf("changes are %v, want %v", got, want)
		}

		for _, handle := range handles[1:] {
			handle.Release()
			handle.Release()
		}
		synctest.Wait()
		if len(manager.Watches()) != 1 {
			t.Error("the watch ended while it was in use")
		}
		handles[0].Release()
		synctest.Wait()
		if len(manager.Watches()) != 0 || metric(t, registry, "elasti_operator_informer_count") != 0 {
			t.Error("the watch did not end with its last user")
		}
		again := acquire(t, manager, server)
		defer again.Release()
		<-again.Synced()
		if server.lists != 2 {
			t.Errorf("%d lists, want a new one", server.lists)
		}
	})
}

func TestResourceThatComesLaterIsSeenWithinSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.put("a")
		server.fail(apierrors.NewNotFound(configMaps.GroupResource(), ""))
		manager, registry := startManager(t)
		handle := acquire(t, manager, server)
		defer handle.Release()
		// Long enough for pauses that double to be long.
		<-time.After(10 * time.Minute)
		if handle.HasSynced() {
			t.Error("synced although every request fails")
		}
		server.fail(nil)
		came := time.Now()
		<-handle.Synced()
		if took := time.Since(came); took > 2*restartAfter {
			t.Errorf("seen after %s", took)
		}
		if metric(t, registry, "elasti_operator_informer_counter") == 0 {
			t.Error("no restarts were counted")
		}
	})
}

func TestResourceThatIsRemovedAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.put("a")
		server.put("b")
		manager, _ := startManager(t)
		handle := acquire(t, manager, server)
		defer handle.Release()
		<-handle.Synced()
		synctest.Wait()
		server.takeChanges()

		server.fail(apierrors.NewNotFound(configMaps.GroupResource(), ""))
		<-time.After(5 * time.Minute)
		if _, ok := handle.Get("", "a"); !ok {
			t.Error("the cached objects are forgotten while the server does not know the kind")
		}
		server.mu.Lock()
		delete(server.objects, "a")
		server.mu.Unlock()
		server.put("b")
		server.put("c")
		server.fail(nil)
		<-time.After(2 * restartAfter)
		synctest.Wait()
		if got, want := server.takeChanges(), []string{"-a", "b", "c"}; !slices.Equal(got, want) {
			t.Errorf("changes are %v, want %v", got, want)
		}
	})
}

func TestOutageOfTheServerIsSurvivedWithoutRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.put("a")
		manager, _ := startManager(t)
		handle := acquire(t, manager, server)
		defer handle.Release()
		<-handle.Synced()
		server.fail(errors.New("connection refused"))
		<-time.After(5 * time.Minute)
		server.put("b")
		server.fail(nil)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if _, ok := handle.Get("", "b"); !ok {
			t.Error("the change of the outage is missing")
		}
		if server.synced != 1 {
			t.Errorf("synced %d times, want once", server.synced)
		}
	})
}

// An object that is missing from a list may be lost. An object that a watch reports as
// deleted was deleted.
func TestOnlyReportedDeletionsAreDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		server.put("deleted")
		server.put("lost")
		manager, _ := startManager(t)
		handle := acquire(t, manager, server)
		defer handle.Release()
		<-handle.Synced()
		synctest.Wait()
		server.takeChanges()
		server.remove("deleted", func(watcher *watch.RaceFreeFakeWatcher, object *corev1.ConfigMap) { watcher.Delete(object) })
		synctest.Wait()
		server.remove("lost", func(watcher *watch.RaceFreeFakeWatcher, _ *corev1.ConfigMap) {
			watcher.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		})
		<-time.After(time.Minute)
		if got, want := server.takeChanges(), []string{"-deleted", "-lost"}; !slices.Equal(got, want) {
			t.Errorf("changes are %v, want %v", got, want)
		}
		if !slices.Equal(server.deleted, []string{"deleted"}) {
			t.Errorf("reported as deleted: %v", server.deleted)
		}
	})
}

func TestIncompleteSource(t *testing.T) {
	if _, err := New(Options{}).Acquire(Source{}); err == nil {
		t.Error("no error")
	}
}

func metric(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == "action" && label.GetValue() != actionRestart {
					series = nil
					break
				}
			}
			if series != nil {
				total += series.GetGauge().GetValue() + series.GetCounter().GetValue()
			}
		}
	}
	return total
}

func TestMetricsFollowTheConventions(t *testing.T) {
	registry := prometheus.NewRegistry()
	NewMetrics(registry).started("deployments.apps")
	if count, err := testutil.GatherAndCount(registry); err != nil || count != 4 {
		t.Error(fmt.Errorf("%d series: %w", count, err))
	}
}

func TestProblemOfAWatchThatDoesNotWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer()
		forbidden := apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no role allows it"))
		server.fail(forbidden)
		failed := make(chan struct{}, 1)
		source := server.source()
		source.Failed = func() {
			select {
			case failed <- struct{}{}:
			default:
			}
		}
		manager, _ := startManager(t)
		handle, err := manager.Acquire(source)
		if err != nil {
			t.Fatal(err)
		}
		defer handle.Release()
		<-failed
		if problem := handle.Problem(); !errors.Is(problem, forbidden) {
			t.Errorf("the problem is %v, want %v", problem, forbidden)
		}
		server.fail(nil)
		<-handle.Synced()
		if problem := handle.Problem(); problem != nil {
			t.Errorf("the problem is %v after it was mended", problem)
		}
	})
}
