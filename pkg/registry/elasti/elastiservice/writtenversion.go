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
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// doubtTime is for how long after a write whose outcome is unknown it may still
// be carried out: longer than the store lets one wait.
const doubtTime = time.Minute

// writtenVersion is the newest resource version among objects that this server
// wrote: a reader of the watch cache that asks for it or a later one sees them
// all. The zero value takes whatever the cache has. Safe for concurrent use.
type writtenVersion struct {
	newest atomic.Uint64
	// doubtful is when the last write failed without saying whether it was
	// carried out. Nil: none did.
	doubtful atomic.Pointer[time.Time]
}

// doubt takes note of a write that may have been, or may be, carried out.
func (w *writtenVersion) doubt(now time.Time) { w.doubtful.Store(&now) }

// isNewest tells whether no write can be newer than the newest one that was
// observed.
func (w *writtenVersion) isNewest(now time.Time) bool {
	doubtful := w.doubtful.Load()
	return doubtful == nil || now.Sub(*doubtful) >= doubtTime
}

// observe takes note of an object as it came back from a write.
func (w *writtenVersion) observe(versioner storage.Versioner, obj runtime.Object) {
	version, err := versioner.ObjectResourceVersion(obj)
	if err != nil {
		// What has no version was not written, as in a dry run.
		return
	}
	for {
		newest := w.newest.Load()
		if version <= newest || w.newest.CompareAndSwap(newest, version) {
			return
		}
	}
}

// String is the resource version as reads ask for it.
func (w *writtenVersion) String() string { return strconv.FormatUint(w.newest.Load(), 10) }
