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

// drain makes the service of an ElastiService, and all its ports, linger.
func (t *Table) drain(key types.NamespacedName) {
	kept := t.entries[key]
	if kept == nil {
		return
	}
	delete(t.entries, key)
	kept.service.Apply(draining(*kept.service.Config()))
	// set without ports opens none, so that it cannot fail.
	_ = t.ports.set(kept.service, nil)
	t.draining = append(t.draining, drainingService{service: kept.service, until: t.options.Clock.Now().Add(t.options.Linger)})
}

// expire ends the ports and services whose linger period is over, and schedules the next
// expiry.
func (t *Table) expire() {
	t.ports.expire()
	now := t.options.Clock.Now()
	for len(t.draining) > 0 && !now.Before(t.draining[0].until) {
		t.draining[0].service.Close()
		t.draining = t.draining[1:]
	}
	t.scheduleExpiry()
}

// scheduleExpiry enqueues the next expiry. There is one timer for all ports and
// services.
func (t *Table) scheduleExpiry() {
	next := t.ports.next()
	if len(t.draining) > 0 && (next.IsZero() || t.draining[0].until.Before(next)) {
		next = t.draining[0].until
	}
	if !next.IsZero() {
		t.queue.AddAfter(expiry, max(0, next.Sub(t.options.Clock.Now())))
	}
}

// closeAll closes all ports and services at once.
func (t *Table) closeAll() {
	for key := range t.entries {
		t.drain(key)
	}
	t.ports.closeAll()
	for _, drained := range t.draining {
		drained.service.Close()
	}
	t.draining = nil
}
