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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/statuswriter"
)

// memory is what the controller remembers of an ElastiService between two
// looks at it. Only the worker that has the ElastiService uses it.
type memory struct {
	// written is what the last write answered, until the watch is as far:
	// deciding on older data would repeat what is done.
	written *v1alpha1.ElastiService
	// zeroSince is when the target was seen to go to zero. Zero if it was not.
	zeroSince time.Time
	// leavingSince is when the target went to zero whose endpoints are still
	// ready, for leavingTime at most. Zero once none is.
	leavingSince time.Time
	// upSince is when the target was last seen to go up from zero, or was first
	// seen and was up. Zero if it was not.
	upSince time.Time
	// sliceRemoved is when the last resolver slice was removed. Zero if that
	// was not seen.
	sliceRemoved time.Time
	// uncoveringSince is since when the resolvers are to leave the path for good,
	// other than by a deletion. Zero when they are not.
	uncoveringSince time.Time
	// listeners are the resolvers that listen on its proxy ports.
	listeners resolvers.PortChecks
	// descentSince is since when a descent has the resolvers in the path. Zero
	// without one.
	descentSince time.Time
	// slept is when a descent scaled the target to zero, until the watch shows
	// that. Zero without one.
	slept time.Time
	// pausing is when a descent paused the autoscaler. Zero without one.
	pausing time.Time
}

// memories are the memories of all ElastiServices. Safe for concurrent use.
type memories struct {
	mu    sync.Mutex
	byKey map[types.NamespacedName]*memory
}

func newMemories() *memories { return &memories{byKey: map[types.NamespacedName]*memory{}} }

// of returns the memory of an ElastiService, which is empty at first.
func (m *memories) of(key types.NamespacedName) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.byKey[key]
	if !ok {
		found = &memory{}
		m.byKey[key] = found
	}
	return found
}

func (m *memories) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byKey, key)
}

// latest returns the newer one of what the watch knows and what was written.
func (m *memory) latest(watched *v1alpha1.ElastiService) *v1alpha1.ElastiService {
	if m.written == nil || m.written.UID != watched.UID {
		m.written = nil
		return watched
	}
	if !statuswriter.IsNewer(m.written.ResourceVersion, watched.ResourceVersion) {
		m.written = nil
		return watched
	}
	return m.written
}
