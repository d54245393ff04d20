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
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// maxWrittenKeys bounds how many keys are told apart. The cache is behind by
// far fewer writes.
const maxWrittenKeys = 1024

// writtenKeys knows for each key the newest resource version that this server
// wrote: a reader of the watch cache that asks for it or a later one sees the
// write, and does not wait for those of other keys. The zero value is ready to
// use. Safe for concurrent use.
type writtenKeys struct {
	mu     sync.Mutex
	newest map[string]uint64
	// order has the keys of newest from the one written first to the one
	// written last. A key may be in it more than once.
	order []writtenKey
	// others is at least the version of every key that is not in newest.
	others uint64
}

type writtenKey struct {
	key     string
	version uint64
}

// observe takes note of an object as it came back from a write.
func (w *writtenKeys) observe(versioner storage.Versioner, key string, obj runtime.Object) {
	version, err := versioner.ObjectResourceVersion(obj)
	if err != nil || version == 0 {
		// What has no version was not written, as in a dry run.
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if version <= w.newest[key] {
		return
	}
	if w.newest == nil {
		w.newest = map[string]uint64{}
	}
	w.newest[key] = version
	w.order = append(w.order, writtenKey{key, version})
	for len(w.order) > maxWrittenKeys {
		oldest := w.order[0]
		w.order = w.order[1:]
		if w.newest[oldest.key] == oldest.version {
			delete(w.newest, oldest.key)
		}
		w.others = max(w.others, oldest.version)
	}
}

// version is the resource version to ask for when reading about a key.
func (w *writtenKeys) version(key string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	version, known := w.newest[key]
	if !known {
		version = w.others
	}
	return strconv.FormatUint(version, 10)
}
