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
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// retire lets the service of an ElastiService, and all its ports, linger.
func (t *Table) retire(key types.NamespacedName) {
	kept := t.entries[key]
	if kept == nil {
		return
	}
	delete(t.entries, key)
	leaving := retiree{service: kept.service, gone: true}
	for _, port := range kept.open {
		leaving.ports = append(leaving.ports, port)
	}
	kept.service.Apply(farewell(*kept.service.Config()))
	t.linger(key, leaving)
}

// linger has a retiree end after a while.
func (t *Table) linger(key types.NamespacedName, leaving retiree) {
	leaving.until = t.options.Clock.Now().Add(t.options.Linger)
	t.retired[key] = append(t.retired[key], leaving)
	t.queue.AddAfter(key, t.options.Linger)
}

// expire ends what has lingered long enough under a key.
func (t *Table) expire(key types.NamespacedName) {
	now := t.options.Clock.Now()
	left := slices.DeleteFunc(t.retired[key], func(leaving retiree) bool {
		if now.Before(leaving.until) {
			return false
		}
		t.end(leaving)
		return true
	})
	if len(left) == 0 {
		delete(t.retired, key)
		return
	}
	t.retired[key] = left
}

func (t *Table) end(leaving retiree) {
	for _, port := range leaving.ports {
		t.options.Listeners.ClosePort(leaving.service, port)
	}
	if leaving.gone {
		leaving.service.Close()
	}
}

// closeAll ends everything at once.
func (t *Table) closeAll() {
	for key := range t.entries {
		t.retire(key)
	}
	for key, all := range t.retired {
		for _, leaving := range all {
			t.end(leaving)
		}
		delete(t.retired, key)
	}
}
