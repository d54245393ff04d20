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

package http2

import (
	"sync"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

const (
	// podBytes is what a connection to a pod takes: what reads from it, and what the
	// two directions keep, small tables of header compression included.
	podBytes = 12 << 10
	// streamBytes is what an open stream takes besides the texts of its record: that
	// record, and its places in the lists of its connection and of its pod.
	streamBytes = 640
	// usageStep is the size of the steps in which a usage is counted, so that streams
	// that come and go seldom touch the account of all connections.
	usageStep = 8 << 10
)

// usage counts what a connection keeps for as long as it has a pod: its open streams,
// and tables of header compression. It is safe for concurrent use.
type usage struct {
	mu     sync.Mutex
	charge memory.Charge
	// bytes are kept, of which charge counts at least as many as counted.
	bytes, counted int64
}

// move has another account charged.
func (u *usage) move(account *memory.Account) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.charge.Release()
	u.charge, u.counted = account.Charge(), 0
}

// add counts bytes more, and fails when there is no room for them.
func (u *usage) add(bytes int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if needed := steps(u.bytes + bytes); needed > u.counted {
		if err := u.charge.Claim(needed); err != nil {
			return err
		}
		u.counted = needed
	}
	u.bytes += bytes
	return nil
}

// remove counts bytes less.
func (u *usage) remove(bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= bytes
	if needed := steps(u.bytes); needed <= u.counted/2 && needed < u.counted {
		// Shrinking does not fail.
		_ = u.charge.Resize(needed)
		u.counted = needed
	}
}

// release gives back all that is counted.
func (u *usage) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.charge.Release()
	u.bytes, u.counted = 0, 0
}

// steps returns bytes, rounded up to whole steps. A connection without a pod has smaller
// ones: it keeps little, and there may be many.
func steps(bytes int64) int64 {
	step := int64(usageStep)
	if bytes < podBytes {
		step = usageStep / 8
	}
	return (bytes + step - 1) / step * step
}

// textBytes returns the size of the client's texts in a record.
func textBytes(record *accesslog.Record) int64 {
	return int64(len(record.Method) + len(record.Path) + len(record.TraceParent))
}

// countOpen counts a stream that is about to be forwarded.
func (c *conn) countOpen(s *stream) error {
	bytes := streamBytes + textBytes(&s.record)
	if err := c.usage.add(bytes); err != nil {
		return err
	}
	s.kept = bytes
	return nil
}

// uncountOpen gives back what countOpen counted, when a stream has ended or is held
// again.
func (c *conn) uncountOpen(s *stream) {
	if s.kept > 0 {
		c.usage.remove(s.kept)
		s.kept = 0
	}
}

func (c *conn) countTable(t *tableUse) error {
	grown := t.cost() - t.counted
	if grown <= 0 {
		return nil
	}
	if err := c.usage.add(grown); err != nil {
		return err
	}
	t.counted += grown
	return nil
}

// countTables counts what the tables between the client and the pod take now.
func (c *conn) countTables() error {
	if err := c.countTable(&c.clientTable); err != nil {
		return err
	}
	return c.countTable(&c.podTable)
}

// forgetTable gives back what a table took, when there is no such table any more.
func (c *conn) forgetTable(t *tableUse) {
	if t.counted > 0 {
		c.usage.remove(t.counted)
	}
	*t = tableUse{}
}
