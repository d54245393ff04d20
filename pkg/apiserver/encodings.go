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

package apiserver

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// maxEncodingsBytes bounds the memory of remembered encodings, with room for the
// ElastiServices of a large cluster.
const maxEncodingsBytes = 64 << 20

// encodingOverheadBytes is about what an entry takes beside its encoding.
const encodingOverheadBytes = 128

// unusedTime is for how long an encoding that nobody asks for is remembered: for
// so long at least, and for twice as long at most. Who lists now and then, as a
// dashboard does, finds them; the memory of those that nobody lists is free.
const unusedTime = time.Minute

// encodingKey names one version of one object.
type encodingKey struct {
	uid             types.UID
	resourceVersion string
}

// encodings remembers encoded objects. What was not asked for during unusedTime,
// or the time in which half of the memory was filled anew, is forgotten. Safe
// for concurrent use.
type encodings struct {
	maxBytes int

	mu sync.Mutex
	// recent fills up to half of the memory and then becomes older, whose
	// entries come back to recent when they are asked for.
	recent, older map[encodingKey][]byte
	recentBytes   int
}

func newEncodings(maxBytes int) *encodings {
	return &encodings{maxBytes: maxBytes, recent: map[encodingKey][]byte{}}
}

// get returns the encoding of an object, or nil. It must not be changed.
func (e *encodings) get(key encodingKey) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if encoded, ok := e.recent[key]; ok {
		return encoded
	}
	encoded, ok := e.older[key]
	if !ok {
		return nil
	}
	delete(e.older, key)
	e.remember(key, encoded)
	return encoded
}

// add remembers an encoding. What has no identity is not remembered.
func (e *encodings) add(key encodingKey, encoded []byte) {
	if key.uid == "" || key.resourceVersion == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.recent[key]; !ok {
		e.remember(key, encoded)
	}
}

// remember is called with mu held.
func (e *encodings) remember(key encodingKey, encoded []byte) {
	size := len(encoded) + encodingOverheadBytes
	if size > e.maxBytes/2 {
		return
	}
	if e.recentBytes+size > e.maxBytes/2 {
		e.age()
	}
	e.recent[key] = encoded
	e.recentBytes += size
}

// run forgets what nobody asks for until ctx ends.
func (e *encodings) run(ctx context.Context, clock clock.WithTicker) {
	ticker := clock.NewTicker(unusedTime)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			e.mu.Lock()
			e.age()
			e.mu.Unlock()
		}
	}
}

// age forgets what was not asked for since the last time. It is called with mu
// held.
func (e *encodings) age() {
	e.older, e.recent, e.recentBytes = e.recent, map[encodingKey][]byte{}, 0
}
