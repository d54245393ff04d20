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

package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

// marker is a progress marker in memory.
type marker struct {
	mu       sync.Mutex
	version  uint64
	contents map[string]bool
	blocked  chan struct{}
	fails    error
}

func (m *marker) touch(_ context.Context, content string) (uint64, error) {
	if m.blocked != nil {
		<-m.blocked
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails != nil {
		return 0, m.fails
	}
	if m.contents == nil {
		m.contents = map[string]bool{}
	}
	m.contents[content] = true
	m.version++
	return m.version, nil
}

func startProgress(t *testing.T, m *marker) (*progress, func()) {
	t.Helper()
	p := newProgress(m.touch, "writer", clock.RealClock{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	return p, func() {
		cancel()
		<-done
	}
}

// A caller must not get the version of a write that began before its call: another
// client may have written in between, and the caller may know of that.
func TestCurrentWaitsForAWriteThatBeginsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{blocked: make(chan struct{})}
		p, stop := startProgress(t, m)
		defer stop()
		versions := make(chan uint64, 3)
		call := func() {
			version, err := p.current(t.Context())
			if err != nil {
				t.Error(err)
			}
			versions <- version
		}
		go call()
		synctest.Wait()
		// The first write has begun: these two wait for the next one, together.
		go call()
		go call()
		synctest.Wait()
		close(m.blocked)
		got := []uint64{<-versions, <-versions, <-versions}
		if got[0] != 1 || got[1] != 2 || got[2] != 2 {
			t.Errorf("got the versions %v", got)
		}
		if len(m.contents) != 2 {
			t.Errorf("%d writes have content of their own", len(m.contents))
		}
	})
}

// Progress that is already on its way to the watch is not requested again.
func TestRequestWaitsForWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{}
		p, stop := startProgress(t, m)
		defer stop()
		for range 3 {
			if err := p.request(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if m.version != 1 {
			t.Errorf("%d writes were made while the first was on its way", m.version)
		}
		p.observe(p.begin(0, 1), 1)
		if err := p.request(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.version != 2 {
			t.Errorf("%d writes were made after the first had arrived", m.version)
		}
	})
}

// The host cluster is restored from an older backup, and the watch cache has what the host
// has lost: it must not be taken for current.
func TestCurrentIsNotOlderThanWhatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{version: 10000}
		p, stop := startProgress(t, m)
		defer stop()
		before := p.begin(10000, 10000)
		if version, err := p.current(t.Context()); err != nil || version != 10001 {
			t.Fatalf("got %d, %v", version, err)
		}
		m.mu.Lock()
		m.version = 5000
		m.mu.Unlock()
		if version, err := p.current(t.Context()); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("after the restore: got %d, %v", version, err)
		}
		// The watch cache has listed again. An event of its previous watch arrives late.
		p.begin(5001, 5001)
		p.observe(before, 10001)
		if version, err := p.current(t.Context()); err != nil || version != 5002 {
			t.Errorf("after the new list: got %d, %v", version, err)
		}
		if err := p.request(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.version != 5002 {
			t.Errorf("the write that is on its way was repeated")
		}
	})
}

// A write of before the restore never arrives.
func TestRequestDoesNotWaitForAWriteThatTheHostHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{version: 10000}
		p, stop := startProgress(t, m)
		defer stop()
		p.begin(10000, 10000)
		if err := p.request(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.mu.Lock()
		m.version = 5000
		m.mu.Unlock()
		p.begin(5000, 5000)
		if err := p.request(t.Context()); err != nil {
			t.Fatal(err)
		}
		if m.version != 5001 {
			t.Errorf("the marker is at %d: no write was made after the restore", m.version)
		}
	})
}

func TestProgressReportsFailuresAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &marker{fails: errors.New("no host")}
		p, stop := startProgress(t, m)
		if _, err := p.current(t.Context()); !errors.Is(err, m.fails) {
			t.Errorf("got %v", err)
		}
		stop()
		if _, err := p.current(t.Context()); !errors.Is(err, errStoreClosed) {
			t.Errorf("after the end: got %v", err)
		}
	})
}
