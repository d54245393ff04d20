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

package accesslog

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// run runs a writer; stop ends it and waits.
func run(w *Writer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func TestRecordsAreLines(t *testing.T) {
	var out bytes.Buffer
	w := New(&out)
	stop := run(w)
	received := time.Now()
	var writing sync.WaitGroup
	for range 50 {
		writing.Go(func() {
			w.Write(&Record{Namespace: "shop", Service: "cart", Path: "/a\nb", Outcome: Forwarded, Received: received})
		})
	}
	writing.Wait()
	stop()
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 50 || w.Dropped() != 0 {
		t.Fatalf("there are %d lines, %d are dropped", len(lines), w.Dropped())
	}
	for _, line := range lines {
		var record Record
		if err := json.Unmarshal(line, &record); err != nil || !record.Received.Equal(received) || record.Path != "/a\nb" {
			t.Fatalf("%s is %+v (%v)", line, record, err)
		}
		if bytes.Contains(line, []byte("wakeAnswered")) {
			t.Fatalf("%s has a time that is not known", line)
		}
	}
}

// encode returns the line of a record, without its end.
func encode(t *testing.T, record *Record) []byte {
	t.Helper()
	var line bytes.Buffer
	w := New(&line)
	stop := run(w)
	w.Write(record)
	stop()
	return bytes.TrimSuffix(line.Bytes(), []byte("\n"))
}

// stuck is an output whose writes block.
type stuck struct {
	writing chan struct{}
	read    chan struct{}
	failure error
}

func newStuck() *stuck { return &stuck{writing: make(chan struct{}, 1), read: make(chan struct{})} }

func (s *stuck) Write(data []byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	default:
	}
	<-s.read
	if s.failure != nil {
		return 0, s.failure
	}
	return len(data), nil
}

// Writes to an output that is not read do not block, nor does the end of the writer:
// lines beyond the limits are dropped.
func TestOutputThatIsNotReadStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newStuck()
		w := New(out)
		stop := run(w)
		w.Write(&Record{})
		<-out.writing
		began := time.Now()
		for range 2 * maxPendingLines {
			w.Write(&Record{})
		}
		if w.Dropped() != maxPendingLines || time.Since(began) != 0 {
			t.Errorf("%d of %d lines are dropped after %s", w.Dropped(), 2*maxPendingLines, time.Since(began))
		}
		stop()
		if time.Since(began) != flushTime {
			t.Errorf("the end took %s", time.Since(began))
		}
		if w.Dropped() != 2*maxPendingLines {
			t.Errorf("%d lines are counted as dropped in the end", w.Dropped())
		}
		close(out.read)
	})
}

// The bytes of long lines are limited.
func TestPendingBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newStuck()
		w := New(out)
		stop := run(w)
		long := strings.Repeat("x", 64<<10)
		for range 1000 {
			w.Write(&Record{Path: long})
		}
		if pending := w.pendingBytes.Load(); pending > maxPendingBytes || w.Dropped() == 0 {
			t.Errorf("%d bytes are pending, %d lines are dropped", pending, w.Dropped())
		}
		close(out.read)
		stop()
		if pending := w.pendingBytes.Load(); pending != 0 {
			t.Errorf("%d bytes are pending in the end", pending)
		}
	})
}

func TestFailedWritesAreCounted(t *testing.T) {
	out := newStuck()
	out.failure = syscall.EPIPE
	close(out.read)
	w := New(out)
	stop := run(w)
	for range 10 {
		w.Write(&Record{})
	}
	stop()
	if w.Dropped() != 10 {
		t.Errorf("%d of 10 lines are dropped", w.Dropped())
	}
}

// decode reads a line, in which no name may be unknown.
func decode(t *testing.T, line []byte) Record {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	var record Record
	if err := decoder.Decode(&record); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return record
}

func TestLinesHaveEveryFieldAsJSON(t *testing.T) {
	at := time.Date(2026, 7, 1, 10, 20, 30, 123456789, time.UTC)
	full := Record{
		Namespace: "shop", Service: "cart", Port: 80, Protocol: HTTP1, Method: "GET", Path: "/a", Status: 200, Outcome: Forwarded,
		Reason: "reason", Pod: "cart-1", TraceParent: "00-1", Client: "192.0.2.1:7", Received: at, WakeSucceeded: at.Add(1), EndpointReady: at.Add(2),
		Released: at.Add(3), Responded: at.Add(4), Ended: at.Add(5), BytesIn: 6, BytesOut: -7, Held: true,
	}
	value := reflect.ValueOf(full)
	for i := range value.NumField() {
		if value.Field(i).IsZero() {
			t.Fatalf("the record of this test has no %s", value.Type().Field(i).Name)
		}
	}
	for _, record := range []Record{{}, full, {Path: "/"}, {Ended: at.Truncate(time.Second)}} {
		line := encode(t, &record)
		if got := decode(t, line); !reflect.DeepEqual(got, record) {
			t.Errorf("%s is read as %+v, want %+v", line, got, record)
		}
		if want, err := json.Marshal(record); err != nil || string(want) != string(line) {
			t.Errorf("the line is %s, want %s (%v)", line, want, err)
		}
	}
}

// Any text of a client is encoded as valid JSON.
func TestStringsAreJSON(t *testing.T) {
	for _, value := range []string{"/a", "a\"b\\c", "\n\x00\x7f", "\xff\xfe", "é\u2028", "<&>"} {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var want string
		if err := json.Unmarshal(encoded, &want); err != nil {
			t.Fatal(err)
		}
		line := encode(t, &Record{Path: value})
		if got := decode(t, line); got.Path != want || bytes.ContainsRune(line, '\n') {
			t.Errorf("%q is read as %q from %s", value, got.Path, line)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	w := New(io.Discard)
	defer run(w)()
	now := time.Now()
	record := &Record{
		Namespace: "shop", Service: "cart", Port: 80, Protocol: HTTP1, Method: "GET", Path: "/items/1", Status: 200, Outcome: Forwarded,
		Pod: "cart-7d9f8c6b5-x2x7k", Client: "10.244.0.1:45678", Received: now, Released: now, Responded: now, Ended: now, BytesIn: 100, BytesOut: 1000,
	}
	for b.Loop() {
		w.Write(record)
	}
}
