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

// Package informerstest has fake clients respond to informers as an API server does.
//
// It knows nothing of what the objects mean. Begin with WatchFromList.
package informerstest

import (
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// firstVersion is larger than the resource versions that a tracker gives to lists.
const firstVersion = 1 << 40

// WatchFromList has the watches of a fake client begin where the lists of its informers
// end. Otherwise they miss what is deleted in between: the informer has it for ever, and
// a controller that deletes it again and again waits for its end.
func WatchFromList(tb testing.TB, fake *clienttesting.Fake, tracker clienttesting.ObjectTracker) {
	tb.Helper()
	w := &watches{tracker: tracker, pending: map[string]*stream{}, version: firstVersion}
	tb.Cleanup(w.stop)
	React(fake, "list", "*", w.list)
	fake.PrependWatchReactor("*", w.watch)
}

// React has a fake client call a reaction before those that it has. Clients may be in use
// already: their lock is held, which PrependReactor alone does not do.
func React(fake *clienttesting.Fake, verb, resource string, reaction clienttesting.ReactionFunc) {
	fake.Lock()
	defer fake.Unlock()
	fake.PrependReactor(verb, resource, reaction) //nolint:forbidigo // This is the place.
}

// HoldWatch holds the events of a resource back from the watches of a fake client that
// begin from now on, until the returned function is called or the test ends.
func HoldWatch(tb testing.TB, fake *clienttesting.Fake, resource string) (deliver func()) {
	tb.Helper()
	delivering := make(chan struct{})
	deliver = sync.OnceFunc(func() { close(delivering) })
	tb.Cleanup(deliver)
	fake.Lock()
	chain := fake.WatchReactionChain
	fake.Unlock()
	fake.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
		for _, reactor := range chain {
			if !reactor.Handles(action) {
				continue
			}
			if handled, events, err := reactor.React(action); handled && err == nil {
				return true, watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
					<-delivering
					return event, true
				}), nil
			} else if handled {
				return true, nil, err
			}
		}
		return false, nil, nil
	})
	return deliver
}

// watches are the watches of a fake client.
type watches struct {
	tracker clienttesting.ObjectTracker

	mu sync.Mutex
	// pending are the watches that began with a list and were not requested yet, by the
	// resource version of the list.
	pending map[string]*stream
	// version is the resource version of the last list.
	version int64
	// all are the streams that are to be ended with the test.
	all []*stream
	// stopped is true when the test has ended.
	stopped bool
}

// list makes the list of an informer, and begins the watch that belongs to it.
func (w *watches) list(action clienttesting.Action) (bool, runtime.Object, error) {
	listed, ok := action.(clienttesting.ListActionImpl)
	if !ok || listed.ListOptions.ResourceVersion == "" {
		// Only informers take a list that is not the newest.
		return false, nil, nil
	}
	for {
		events, err := w.tracker.Watch(action.GetResource(), action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		_, list, err := clienttesting.ObjectReaction(w.tracker)(action)
		if err != nil {
			events.Stop()
			return true, nil, err
		}
		if len(events.ResultChan()) > 0 {
			// Something changed while the list was made, which may have it or not.
			events.Stop()
			continue
		}
		return true, list, w.begin(list, events)
	}
}

// begin has the watch that follows a list get events.
func (w *watches) begin(list runtime.Object, events watch.Interface) error {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	begun := newStream(events)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	accessor.SetResourceVersion(strconv.FormatInt(w.version, 10))
	w.pending[accessor.GetResourceVersion()] = begun
	w.all = append(w.all, begun)
	if w.stopped {
		// An informer that is stopped does not wait for the list that it has requested.
		begun.Stop()
	}
	return nil
}

// watch returns the watch that began with a list.
func (w *watches) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	watched, ok := action.(clienttesting.WatchActionImpl)
	if !ok {
		return false, nil, nil
	}
	version := watched.ListOptions.ResourceVersion
	w.mu.Lock()
	defer w.mu.Unlock()
	if begun, ok := w.pending[version]; ok {
		delete(w.pending, version)
		return true, begun, nil
	}
	if number, err := strconv.ParseInt(version, 10, 64); err == nil && number >= firstVersion {
		// A watch of this list has ended: the informer lists again.
		return true, nil, apierrors.NewResourceExpired("the events since this list were received already")
	}
	return false, nil, nil
}

// stop ends all watches.
func (w *watches) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, begun := range w.all {
		begun.Stop()
	}
}

// stream is a watch that keeps all events until they are received.
type stream struct {
	source  watch.Interface
	events  chan watch.Event
	stopped chan struct{}
	stop    func()
}

func newStream(source watch.Interface) *stream {
	s := &stream{source: source, events: make(chan watch.Event), stopped: make(chan struct{})}
	s.stop = sync.OnceFunc(func() {
		close(s.stopped)
		source.Stop()
	})
	go s.run()
	return s
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface.
func (s *stream) Stop() { s.stop() }

func (s *stream) run() {
	defer close(s.events)
	var waiting []watch.Event
	for {
		var events chan<- watch.Event
		var next watch.Event
		if len(waiting) > 0 {
			events, next = s.events, waiting[0]
		}
		select {
		case <-s.stopped:
			return
		case event, ok := <-s.source.ResultChan():
			if !ok {
				return
			}
			waiting = append(waiting, event)
		case events <- next:
			waiting = waiting[1:]
		}
	}
}
