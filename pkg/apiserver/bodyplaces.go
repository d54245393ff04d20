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

package apiserver

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// bodyPlaces are the places of bodies that are not small. Requests for one namespace have
// largeBodiesOfNamespace of them at most, and only as many compete for a free one. It is safe
// for concurrent use.
type bodyPlaces struct {
	all *semaphore.Weighted

	mu sync.Mutex
	// namespaces are the places of the namespaces that have one or wait for one. It is
	// guarded by mu.
	namespaces map[string]*namespacePlaces
}

// namespacePlaces are the places of one namespace.
type namespacePlaces struct {
	*semaphore.Weighted
	// users counts the requests that have a place or wait for one. It is guarded by
	// bodyPlaces.mu.
	users int
}

func newBodyPlaces() *bodyPlaces {
	return &bodyPlaces{all: semaphore.NewWeighted(largeBodies), namespaces: map[string]*namespacePlaces{}}
}

// acquire waits for a place, and returns the function that gives it back. It returns the
// error of ctx when ctx ends first.
func (p *bodyPlaces) acquire(ctx context.Context, namespace string) (release func(), err error) {
	own := p.enter(namespace)
	if err := own.Acquire(ctx, 1); err != nil {
		p.leave(namespace)
		return nil, err
	}
	leaveOwn := func() {
		own.Release(1)
		p.leave(namespace)
	}
	if err := p.all.Acquire(ctx, 1); err != nil {
		leaveOwn()
		return nil, err
	}
	return func() {
		p.all.Release(1)
		leaveOwn()
	}, nil
}

// enter counts a request, and makes the places of its namespace for the first.
func (p *bodyPlaces) enter(namespace string) *namespacePlaces {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, ok := p.namespaces[namespace]
	if !ok {
		own = &namespacePlaces{Weighted: semaphore.NewWeighted(largeBodiesOfNamespace)}
		p.namespaces[namespace] = own
	}
	own.users++
	return own
}

// leave removes a request, and deletes the places of its namespace after the last one.
func (p *bodyPlaces) leave(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.namespaces[namespace]
	if own.users--; own.users == 0 {
		delete(p.namespaces, namespace)
	}
}
