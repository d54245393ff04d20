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

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// deletions are the ElastiServices whose deletion the watch has reported. An ElastiService
// that is missing from a list may have been lost by the storage. An ElastiService whose
// deletion is an event was deleted, whether the storage has others or not. It is safe for
// concurrent use.
type deletions struct {
	mu sync.Mutex
	// byKey has each ElastiService as it was, until the worker that syncs it has
	// cleaned up after it.
	byKey map[types.NamespacedName]*v1alpha1.ElastiService
	// ended has the UID of each ElastiService that the cache does not have any more,
	// whatever that was reported by, for as long.
	ended map[types.NamespacedName]types.UID
}

func newDeletions() *deletions {
	return &deletions{byKey: map[types.NamespacedName]*v1alpha1.ElastiService{}, ended: map[types.NamespacedName]types.UID{}}
}

func (d *deletions) record(last *v1alpha1.ElastiService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byKey[resources.KeyOf(last)] = last
}

// end records that the cache does not have an ElastiService any more, and that this was
// reported.
func (d *deletions) end(last *v1alpha1.ElastiService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended[resources.KeyOf(last)] = last.UID
}

// reported reports whether end was called for an ElastiService. The cache is without it
// a moment before that.
func (d *deletions) reported(key types.NamespacedName, uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended[key] == uid
}

// last returns an ElastiService as it was when it was deleted, nil if its deletion was
// not reported.
func (d *deletions) last(key types.NamespacedName) *v1alpha1.ElastiService {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byKey[key]
}

// exists records that there is an ElastiService: one of its name that was deleted before
// does not count any more.
func (d *deletions) exists(elastiService *v1alpha1.ElastiService) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := resources.KeyOf(elastiService)
	if last, ok := d.byKey[key]; ok && last.UID != elastiService.UID {
		delete(d.byKey, key)
	}
	if d.ended[key] != elastiService.UID {
		delete(d.ended, key)
	}
}

func (d *deletions) forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.byKey, key)
	delete(d.ended, key)
}
