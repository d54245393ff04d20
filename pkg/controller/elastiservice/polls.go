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

package elastiservice

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
)

const (
	// pollInterval is how often a target is polled that no watch reports, when there are
	// few of them: its kind is not served or may not be watched, or a server does not respond.
	pollInterval = time.Second
	// pollsPerRound is how many of them are polled in each interval: the requests go
	// through the client that wakes use too.
	pollsPerRound = 100
)

// polls are the ElastiServices that wait for their targets to be polled, as no watch
// reports them. Each namespace gets its turn: one with thousands of kinds that are
// not served delays its own. It is safe for concurrent use.
type polls struct {
	mu      sync.Mutex
	waiting *fairqueue.Queue[types.NamespacedName]
}

func newPolls() *polls { return &polls{waiting: fairqueue.New(fairqueue.NamespaceOf)} }

// join has an ElastiService wait, unless it does, and reports whether it is the only one.
func (p *polls) join(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.Has(key) {
		return false
	}
	p.waiting.Push(key)
	return p.waiting.Len() == 1
}

// leave ends the waiting of an ElastiService.
func (p *polls) leave(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.Remove(key)
}

// next removes those whose turn it is, and reports whether more of them wait.
func (p *polls) next() (round []types.NamespacedName, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.waiting.Len() > 0 && len(round) < pollsPerRound {
		round = append(round, p.waiting.Pop())
	}
	return round, p.waiting.Len() > 0
}

// pollTarget has the target of an ElastiService polled when its turn comes.
func (c *Controller) pollTarget(key types.NamespacedName) {
	if c.polls.join(key) {
		c.queue.AddAfter(nextPolls, pollInterval)
	}
}

// pollTargets enqueues the ElastiServices whose targets are to be polled now, and itself for
// the next ones.
func (c *Controller) pollTargets() {
	round, more := c.polls.next()
	for _, key := range round {
		c.enqueue(key)
	}
	if more {
		c.queue.AddAfter(nextPolls, pollInterval)
	}
}
