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

package consistency

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// maxTrackedKeys bounds how many keys are distinguished. The cache is behind by
// far fewer writes.
const maxTrackedKeys = 1024

// KeyTracker holds for each key the newest resource version that this server
// wrote: a read of the watch cache at that version or later sees the write, and
// does not wait for those of other keys. The zero value is ready to use. It is
// safe for concurrent use.
type KeyTracker struct {
	mu     sync.Mutex
	newest map[string]uint64
	// writes has the keys of newest from the one written first to the one
	// written last. A key may be in it more than once.
	writes []keyWrite
	// others is at least the version of every key that is not in newest.
	others uint64
}

type keyWrite struct {
	key     string
	version uint64
}

// Observe records the version of an object that a write of the key returned.
func (t *KeyTracker) Observe(versioner storage.Versioner, key string, obj runtime.Object) {
	version, err := versioner.ObjectResourceVersion(obj)
	if err != nil || version == 0 {
		// An object without a version was not written, as in a dry run.
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if version <= t.newest[key] {
		return
	}
	if t.newest == nil {
		t.newest = map[string]uint64{}
	}
	t.newest[key] = version
	t.writes = append(t.writes, keyWrite{key, version})
	for len(t.writes) > maxTrackedKeys {
		oldest := t.writes[0]
		t.writes = t.writes[1:]
		if t.newest[oldest.key] == oldest.version {
			delete(t.newest, oldest.key)
		}
		t.others = max(t.others, oldest.version)
	}
}

// ResourceVersion returns the resource version for reads that have to see the
// writes of a key.
func (t *KeyTracker) ResourceVersion(key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	version, ok := t.newest[key]
	if !ok {
		version = t.others
	}
	return strconv.FormatUint(version, 10)
}

// Lower makes versions that the store has not reached the current one. They are those of
// writes to a store that was restored from an older backup since: a watch cache would not
// reach them until the store has had as many changes.
func (t *KeyTracker) Lower(current uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others = min(t.others, current)
	for key, version := range t.newest {
		t.newest[key] = min(version, current)
	}
	for i := range t.writes {
		t.writes[i].version = min(t.writes[i].version, current)
	}
}
