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

// maxEncodedObjectsBytes bounds the memory of cached encodings, with room for the
// ElastiServices of a large cluster.
const maxEncodedObjectsBytes = 64 << 20

// encodingOverheadBytes estimates what an entry takes beside its encoding.
const encodingOverheadBytes = 128

// rotationInterval is the shortest time for which an unused encoding is cached; the
// longest is twice that. Clients that list now and then, as a dashboard does, hit
// the cache, and unused encodings are freed.
const rotationInterval = time.Minute

// encodingKey names one version of one object.
type encodingKey struct {
	uid             types.UID
	resourceVersion string
}

// encodedObjects is a cache of encoded objects. An encoding that was not used in
// the last rotationInterval, or while half of the memory was filled with others, is
// evicted. It is safe for concurrent use.
type encodedObjects struct {
	maxBytes int

	mu sync.Mutex
	// recent fills up to half of the memory and then becomes older, whose
	// entries move back to recent when they are used.
	recent, older map[encodingKey][]byte
	recentBytes   int
}

func newEncodedObjects(maxBytes int) *encodedObjects {
	return &encodedObjects{maxBytes: maxBytes, recent: map[encodingKey][]byte{}}
}

// get returns the encoding of an object, or nil. The caller must not change it.
func (e *encodedObjects) get(key encodingKey) []byte {
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
	e.insert(key, encoded)
	return encoded
}

// add caches an encoding, unless the object has no UID or resource version.
func (e *encodedObjects) add(key encodingKey, encoded []byte) {
	if key.uid == "" || key.resourceVersion == "" {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.recent[key]; !ok {
		e.insert(key, encoded)
	}
}

// insert adds an entry to recent. It must be called with mu held.
func (e *encodedObjects) insert(key encodingKey, encoded []byte) {
	size := len(encoded) + encodingOverheadBytes
	if size > e.maxBytes/2 {
		return
	}
	if e.recentBytes+size > e.maxBytes/2 {
		e.rotate()
	}
	e.recent[key] = encoded
	e.recentBytes += size
}

// run evicts unused encodings until ctx ends.
func (e *encodedObjects) run(ctx context.Context, clock clock.WithTicker) {
	ticker := clock.NewTicker(rotationInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			e.mu.Lock()
			e.rotate()
			e.mu.Unlock()
		}
	}
}

// rotate evicts what was not used since the last rotation. It must be called with mu
// held.
func (e *encodedObjects) rotate() {
	e.older, e.recent, e.recentBytes = e.recent, map[encodingKey][]byte{}, 0
}
