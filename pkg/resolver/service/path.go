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

package service

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

// DefaultPathTimeout is how long a connection waits for resolvers to be in the path
// of its service. The controller puts them there first, and whether they see that
// before their clients do is up to two watches: one that was interrupted, by a
// restart of the API server for instance, begins again after up to 30 s.
const DefaultPathTimeout = 35 * time.Second

// enteredTime is for how long after EnterPath connections are served although nothing
// else says yet that resolvers are in the path: longer than a watch may be behind.
const enteredTime = 10 * time.Minute

// leftInterval is the time between two checks whether the client of a connection that
// waits is still there.
const leftInterval = 500 * time.Millisecond

// path observes whether resolvers are in the path of a service's traffic, as far as a
// resolver can see. It is safe for concurrent use.
type path struct {
	mu sync.Mutex
	// mode and pods are the two signs: what the configuration says of the mode,
	// and whether a pod is ready.
	mode, pods bool
	// left is when the last sign ended that resolvers are in the path, or about to
	// be. Zero while there is one.
	left time.Time
	// announced is when the controller last reported that it is about to put this resolver in
	// the path. Zero once what the configuration says is known to be later.
	announced time.Time
	// entered is closed when there is a sign again. Nil while nothing waits for it.
	entered chan struct{}
}

// setMode records whether the configuration says that resolvers are in the path,
// or about to be.
func (p *path) setMode(config *Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.mode
	p.mode = config.Mode != v1alpha1.ModeServe || config.Always || config.FallingAsleep
	if before && !p.mode {
		// That they were in the path has been seen, and so has that they left it.
		p.announced = time.Time{}
	}
	p.update()
}

// setPods records what the EndpointSlices say. Without a ready pod, the controller
// is about to put resolvers in the path, or has.
func (p *path) setPods(pods []endpoint.Description) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = slices.ContainsFunc(pods, func(pod endpoint.Description) bool { return pod.Ready && !pod.Terminating })
	p.update()
}

// update must be called with mu held.
func (p *path) update() {
	if !p.mode && p.pods {
		if p.left.IsZero() {
			p.left = time.Now()
		}
		return
	}
	p.left = time.Time{}
	p.release()
}

// release lets the connections go on that wait. It must be called with mu held.
func (p *path) release() {
	if p.entered != nil {
		close(p.entered)
		p.entered = nil
	}
}

// enter records that the controller is about to put this resolver in the path.
func (p *path) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announced = time.Now()
	p.release()
}

// open reports whether new connections are served, also for a grace period after
// resolvers left the path, 0 is for ever, and while this one is about to be in it. When
// they are not, it returns what is closed once they are.
func (p *path) open(grace time.Duration) (entered <-chan struct{}, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.served(grace) {
		return nil, true
	}
	if p.entered == nil {
		p.entered = make(chan struct{})
	}
	return p.entered, false
}

// served reports whether new connections are served. It must be called with mu held.
func (p *path) served(grace time.Duration) bool {
	return grace <= 0 || p.left.IsZero() || time.Since(p.left) < grace ||
		!p.announced.IsZero() && time.Since(p.announced) < enteredTime
}

// EnterPath makes new connections be served from now on: the controller is about to
// put this resolver in the path of the service, which the resolver may observe later
// than clients do.
func (s *Service) EnterPath() { s.path.enter() }

// PathObserved reports whether the resolver observes that resolvers are in the path of the
// service, or are about to be.
func (s *Service) PathObserved() bool {
	s.path.mu.Lock()
	defer s.path.mu.Unlock()
	return s.path.left.IsZero()
}

// InPath reports whether new connections are served.
func (s *Service) InPath() bool {
	s.path.mu.Lock()
	defer s.path.mu.Unlock()
	return s.path.served(s.serveGrace)
}

// AwaitPath returns when a new connection to the service may be served, and
// reports whether it may: while resolvers are in the path of its traffic, or are
// about to be, and for Options.ServeGrace after that. A connection that comes
// at another time waits for Options.PathTimeout, because its client may know sooner than this
// resolver that resolvers are in the path again; nothing may be read from it
// before. The wait ends when left returns true for a client that has disconnected.
func (s *Service) AwaitPath(ctx context.Context, left func() bool) bool {
	entered, open := s.path.open(s.serveGrace)
	if open {
		return true
	}
	timer := time.NewTimer(s.pathTimeout)
	defer timer.Stop()
	ticker := time.NewTicker(leftInterval)
	defer ticker.Stop()
	for {
		select {
		case <-entered:
			return true
		case <-ticker.C:
			if left() {
				return false
			}
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
