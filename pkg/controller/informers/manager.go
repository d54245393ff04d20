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

// Package informers shares watches: one for each resource and scope, whatever the
// number of its users, started for the first one and stopped after the last one. A
// watch that fails, such as that of a kind whose CustomResourceDefinition is deleted
// and created again, is restarted.
//
// It knows nothing of the kinds that are watched. Begin with Manager.
package informers

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Options configure a Manager.
type Options struct {
	// Clock times the restarts. Defaults to the real clock.
	Clock clock.WithTicker
	// Metrics count what the watches do. Defaults to metrics of a registry of their own.
	Metrics *Metrics
}

// Manager shares watches. It is safe for concurrent use.
type Manager struct {
	clock   clock.WithTicker
	metrics *Metrics

	// added signals Run that there is something in pending. It has room for one
	// message and is never closed.
	added chan struct{}

	mu      sync.Mutex
	watches map[Key]*sharedWatch
	// pending are the watches that Run has not started yet.
	pending []*sharedWatch
}

// New returns a manager without watches.
func New(options Options) *Manager {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Metrics == nil {
		options.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	return &Manager{
		clock:   options.Clock,
		metrics: options.Metrics,
		added:   make(chan struct{}, 1),
		watches: map[Key]*sharedWatch{},
	}
}

// Run runs the watches until ctx ends, and returns when they have ended.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, watch := range m.takePending() {
			running.Go(func() { watch.run(ctx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.added:
		}
	}
}

// Acquire returns the watch with the key of source, and starts it when it has no
// other user. It does not wait for it. The other fields of source count only for the
// call that starts it. The handle must be released.
func (m *Manager) Acquire(source Source) (*Handle, error) {
	if source.List == nil || source.Watch == nil || source.Example == nil || source.Changed == nil {
		return nil, errors.New("informers: a source needs List, Watch, Example and Changed")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	shared, ok := m.watches[source.Key]
	if !ok {
		shared = newSharedWatch(source, m.clock, m.metrics)
		m.watches[source.Key] = shared
		m.pending = append(m.pending, shared)
		select {
		case m.added <- struct{}{}:
		default:
		}
	}
	shared.users++
	return &Handle{shared: shared, release: sync.OnceFunc(func() { m.release(shared) })}, nil
}

// Watches returns the keys of the watches that are in use, in no order.
func (m *Manager) Watches() []Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := make([]Key, 0, len(m.watches))
	for key := range m.watches {
		keys = append(keys, key)
	}
	return keys
}

func (m *Manager) release(shared *sharedWatch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shared.users--
	if shared.users > 0 {
		return
	}
	delete(m.watches, shared.source.Key)
	m.pending = slices.DeleteFunc(m.pending, func(other *sharedWatch) bool { return other == shared })
	close(shared.unused)
}

func (m *Manager) takePending() []*sharedWatch {
	m.mu.Lock()
	defer m.mu.Unlock()
	pending := m.pending
	m.pending = nil
	return pending
}

// Handle is one use of a shared watch. It is safe for concurrent use.
type Handle struct {
	shared  *sharedWatch
	release func()
}

// Release ends this use. The watch is stopped when it was the last one.
func (h *Handle) Release() { h.release() }

// Synced returns a channel that is closed when the cache is synced for the first time.
func (h *Handle) Synced() <-chan struct{} { return h.shared.synced }

// HasSynced reports whether the cache is synced.
func (h *Handle) HasSynced() bool {
	select {
	case <-h.shared.synced:
		return true
	default:
		return false
	}
}

// Problem returns why the watch fails, nil when it works. Its objects are then those
// that were cached before.
func (h *Handle) Problem() error {
	h.shared.mu.RLock()
	defer h.shared.mu.RUnlock()
	return h.shared.problem
}

// Get returns what is kept of an object. Callers must not modify it.
func (h *Handle) Get(namespace, name string) (any, bool) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	object, ok, err := h.shared.store().GetByKey(key)
	return object, ok && err == nil
}

// ByIndex returns the objects with a value in an index. Callers must not modify
// them. An index that the source does not have is empty.
func (h *Handle) ByIndex(index, value string) []any {
	objects, err := h.shared.store().ByIndex(index, value)
	if err != nil {
		return nil
	}
	return objects
}

// List returns all objects. Callers must not modify them.
func (h *Handle) List() []any { return h.shared.store().List() }
