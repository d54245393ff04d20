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
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// unknownOutcomePeriod is for how long a write whose outcome is unknown may
// still be carried out: longer than the timeout of any write.
const unknownOutcomePeriod = time.Minute

// VersionTracker holds the newest resource version among the objects that this
// server wrote: a read of the watch cache at that version or later sees all these
// writes. The zero value accepts whatever the cache has. It is safe for
// concurrent use.
type VersionTracker struct {
	newest atomic.Uint64
	// outcomeUnknown is when the last write failed without saying whether it was
	// carried out. It is nil when none did.
	outcomeUnknown atomic.Pointer[time.Time]
}

// Observe records the version of an object that a write returned.
func (t *VersionTracker) Observe(versioner storage.Versioner, obj runtime.Object) {
	version, err := versioner.ObjectResourceVersion(obj)
	if err != nil {
		// An object without a version was not written, as in a dry run.
		return
	}
	for {
		newest := t.newest.Load()
		if version <= newest || t.newest.CompareAndSwap(newest, version) {
			return
		}
	}
}

// ResourceVersion returns the resource version for reads that have to see the
// writes.
func (t *VersionTracker) ResourceVersion() string {
	return strconv.FormatUint(t.newest.Load(), 10)
}

// observeUnknown records a write that may have been, or may still be, carried out.
func (t *VersionTracker) observeUnknown(now time.Time) { t.outcomeUnknown.Store(&now) }

// IsNewest reports whether no write can be newer than the newest one that was
// observed.
func (t *VersionTracker) IsNewest(now time.Time) bool {
	unknown := t.outcomeUnknown.Load()
	return unknown == nil || now.Sub(*unknown) >= unknownOutcomePeriod
}
