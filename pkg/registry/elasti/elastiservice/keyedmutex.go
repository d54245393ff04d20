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

// keyedMutex lets one holder at a time have a key. The zero value is ready.
// Safe for concurrent use. Keys that nobody holds or waits for take no memory.
type keyedMutex struct {
	mu sync.Mutex
	// turns is guarded by mu.
	turns map[string]*turn
}

// turn is the right to hold one key.
type turn struct {
	// token has one element while nobody holds the key.
	token chan struct{}
	// users is how many hold the key or wait for it. Guarded by keyedMutex.mu.
	users int
}

// lock waits until nobody else holds the key, and returns how to let it go.
// It returns the error of ctx when that ends first.
func (m *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	t := m.join(key)
	select {
	case <-t.token:
		return func() {
			t.token <- struct{}{}
			m.leave(key, t)
		}, nil
	case <-ctx.Done():
		m.leave(key, t)
		return nil, ctx.Err()
	}
}

func (m *keyedMutex) join(key string) *turn {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.turns == nil {
		m.turns = map[string]*turn{}
	}
	t, ok := m.turns[key]
	if !ok {
		t = &turn{token: make(chan struct{}, 1)}
		t.token <- struct{}{}
		m.turns[key] = t
	}
	t.users++
	return t
}

func (m *keyedMutex) leave(key string, t *turn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(m.turns, key)
	}
}
