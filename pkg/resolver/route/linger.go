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

package route

import (
	"k8s.io/apimachinery/pkg/types"
)

// retire lets the service of an ElastiService, and all its ports, linger.
func (t *Table) retire(key types.NamespacedName) {
	kept := t.entries[key]
	if kept == nil {
		return
	}
	delete(t.entries, key)
	kept.service.Apply(draining(*kept.service.Config()))
	// Nothing is opened for what wants nothing.
	_ = t.ports.set(kept.service, nil)
	t.retired = append(t.retired, retiree{service: kept.service, until: t.options.Clock.Now().Add(t.options.Linger)})
}

// expire ends what has lingered long enough, and comes back for the rest.
func (t *Table) expire() {
	t.ports.expire()
	now := t.options.Clock.Now()
	for len(t.retired) > 0 && !now.Before(t.retired[0].until) {
		t.retired[0].service.Close()
		t.retired = t.retired[1:]
	}
	t.scheduleExpiry()
}

// scheduleExpiry has the next that lingers ended in time. There is one timer,
// whatever changed.
func (t *Table) scheduleExpiry() {
	next := t.ports.next()
	if len(t.retired) > 0 && (next.IsZero() || t.retired[0].until.Before(next)) {
		next = t.retired[0].until
	}
	if !next.IsZero() {
		t.queue.AddAfter(expiry, max(0, next.Sub(t.options.Clock.Now())))
	}
}

// closeAll ends everything at once.
func (t *Table) closeAll() {
	for key := range t.entries {
		t.retire(key)
	}
	t.ports.closeAll()
	for _, leaving := range t.retired {
		leaving.service.Close()
	}
	t.retired = nil
}
