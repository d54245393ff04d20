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
	"context"
	"sync"
)

// keyedMutex is a mutex for each key. The zero value is ready to use. It is safe
// for concurrent use. A key that is neither locked nor waited for takes no memory.
type keyedMutex struct {
	mu sync.Mutex
	// locks is guarded by mu.
	locks map[string]*keyLock
}

// keyLock is the lock of one key.
type keyLock struct {
	// token has one element while the key is unlocked.
	token chan struct{}
	// users counts the goroutines that hold the key or wait for it. It is guarded by
	// keyedMutex.mu.
	users int
}

// lock waits until the key is unlocked, locks it, and returns the function that
// unlocks it. It returns the error of ctx when ctx ends first.
func (m *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	l := m.acquire(key)
	select {
	case <-l.token:
		return func() {
			l.token <- struct{}{}
			m.release(key, l)
		}, nil
	case <-ctx.Done():
		m.release(key, l)
		return nil, ctx.Err()
	}
}

// acquire counts a user of the lock of a key, and makes the lock for the first.
func (m *keyedMutex) acquire(key string) *keyLock {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks == nil {
		m.locks = map[string]*keyLock{}
	}
	l, ok := m.locks[key]
	if !ok {
		l = &keyLock{token: make(chan struct{}, 1)}
		l.token <- struct{}{}
		m.locks[key] = l
	}
	l.users++
	return l
}

// release removes a user of the lock, and deletes the lock after the last one.
func (m *keyedMutex) release(key string, l *keyLock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(m.locks, key)
	}
}
