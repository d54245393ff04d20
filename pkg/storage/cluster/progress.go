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
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

const (
	// minProgressInterval is the least time from one write of the progress marker
	// to the next one: however many clients want current reads, and however often,
	// the host cluster gets 50 writes a second.
	minProgressInterval = 20 * time.Millisecond
	// progressTimeout bounds one write of the marker.
	progressTimeout = 10 * time.Second
)

// errStoreClosed is what callers get that wait for a store that has ended.
var errStoreClosed = errors.New("the storage is closed")

// progress finds out the current version by writing to the progress marker. It is
// safe for concurrent use.
type progress struct {
	// Immutable.
	touch  func(ctx context.Context, content string) (uint64, error)
	clock  clock.Clock
	writer string
	// due has room for one: a write is due.
	due chan struct{}

	mu sync.Mutex
	// next is the write that has not begun yet, or nil.
	next *progressWrite
	// closed says that there will be no other write.
	closed bool
	// written is the version of the last write, and seen the last one that arrived
	// on the watch of the watch cache.
	written, seen uint64
	// watch is the number of that watch.
	watch uint64

	// Owned by run.
	writes uint64
}

// progressWrite is a write that several callers wait for.
type progressWrite struct {
	done    chan struct{}
	version uint64
	err     error
}

func newProgress(touch func(ctx context.Context, content string) (uint64, error), writer string, clock clock.Clock) *progress {
	return &progress{touch: touch, writer: writer, clock: clock, due: make(chan struct{}, 1)}
}

// run writes the marker whenever something waits for it, until ctx ends.
func (p *progress) run(ctx context.Context) {
	defer p.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.due:
		}
		p.write(ctx)
		pause := p.clock.NewTimer(minProgressInterval)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C():
		}
	}
}

// write makes the write that is due. Callers that arrive once it has begun wait for the
// next one: they may have seen versions that are newer than this one.
func (p *progress) write(ctx context.Context) {
	p.mu.Lock()
	due := p.next
	p.next = nil
	seen := p.seen
	p.mu.Unlock()
	if due == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, progressTimeout)
	defer cancel()
	p.writes++
	due.version, due.err = p.touch(ctx, p.writer+"-"+strconv.FormatUint(p.writes, 10))
	switch {
	case due.err != nil:
	case due.version <= seen:
		// Every write is newer than all before it. The watch cache would take what it has
		// for newer than the version that it is to have.
		due.version, due.err = 0, wentBack()
	default:
		p.mu.Lock()
		p.written = max(p.written, due.version)
		p.mu.Unlock()
	}
	close(due.done)
}

func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.next != nil {
		p.next.err = errStoreClosed
		close(p.next.done)
		p.next = nil
	}
}

// wentBack returns the error for a host cluster that has lost what the watch cache has seen,
// until the watch cache has begun anew.
func wentBack() error {
	return apierrors.NewServiceUnavailable("the host cluster was restored from an older backup: what it stores is read again, try again in a few seconds")
}

// current returns a version that is not older than any write that returned before the
// call. Its event arrives on every watch.
func (p *progress) current(ctx context.Context) (uint64, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return 0, errStoreClosed
	}
	if p.next == nil {
		p.next = &progressWrite{done: make(chan struct{})}
		select {
		case p.due <- struct{}{}:
		default:
		}
	}
	write := p.next
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-write.done:
		return write.version, write.err
	}
}

// request makes an event arrive on the watch, unless one is already on its way.
func (p *progress) request(ctx context.Context) error {
	p.mu.Lock()
	onItsWay := p.written > p.seen
	p.mu.Unlock()
	if onItsWay {
		return nil
	}
	_, err := p.current(ctx)
	return err
}

// begin records that the watch cache begins a watch at a version, when the host cluster is
// at the current one, and returns the number of the watch. What was seen before counts no
// more: the host cluster may have been restored from an older backup.
func (p *progress) begin(version, current uint64) (watch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch++
	p.seen, p.written = version, min(p.written, current)
	return p.watch
}

// observe records that a watch has reached a version. A watch that another one has replaced
// does not count.
func (p *progress) observe(watch, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if watch == p.watch {
		p.seen = max(p.seen, version)
	}
}
