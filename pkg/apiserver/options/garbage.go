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

package options

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Garbage is collected when the heap holds garbagePercent of what is in use,
// but not before it holds minGarbageBytes.
//
// Most of what is in use are objects that stay, and few of them change at a
// time: a quarter of Go's default saves memory in a large installation and
// costs little time. In a small one it would collect after every few megabytes.
const (
	garbagePercent  = 25
	minGarbageBytes = 64 << 20
)

// limitGarbage applies both, unless the environment sets GOGC.
func limitGarbage() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	debug.SetGCPercent(garbagePercent)
	afterEachCollection(func() { debug.SetGCPercent(percentFor(liveBytes())) })
}

// percentFor returns the garbage to allow, in percent of what is in use.
func percentFor(live uint64) int {
	if live == 0 {
		return garbagePercent
	}
	return max(garbagePercent, int(minGarbageBytes*100/live))
}

// liveBytes returns how much the last collection found to be in use.
func liveBytes() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}

// collected is an unused object: its cleanup shows that there was a collection.
type collected struct{ _ [16]byte }

// afterEachCollection calls do after every garbage collection, for as long as
// the process lasts.
func afterEachCollection(do func()) {
	var again func(struct{})
	again = func(struct{}) {
		do()
		runtime.AddCleanup(&collected{}, again, struct{}{})
	}
	again(struct{}{})
}
