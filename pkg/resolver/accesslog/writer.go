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
	"context"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

const (
	// maxPendingLines and maxPendingBytes bound the lines that are not written yet.
	// More are dropped.
	maxPendingLines = 8 << 10
	maxPendingBytes = 4 << 20
	// batchBytes is the approximate size of one write.
	batchBytes = 64 << 10
	// flushTime bounds the time for which pending lines are written after the end.
	flushTime = 2 * time.Second
)

// Writer writes records without blocking its callers: lines that cannot be written
// in time are dropped and counted. It is safe for concurrent use.
type Writer struct {
	// Immutable.
	encoder zapcore.Encoder
	out     io.Writer
	// lines has the lines that are not written yet. It is never closed.
	lines chan *buffer.Buffer

	pendingBytes atomic.Int64
	dropped      atomic.Int64
}

// New returns a Writer that writes whole lines to out while Run runs.
func New(out io.Writer) *Writer {
	return &Writer{encoder: newEncoder(), out: out, lines: make(chan *buffer.Buffer, maxPendingLines)}
}

// Dropped returns how many records were dropped because the output was too slow or
// failed.
func (w *Writer) Dropped() int64 { return w.dropped.Load() }

// Write enqueues a record and does not block. It does not retain the record.
func (w *Writer) Write(record *Record) {
	line, err := w.encoder.EncodeEntry(zapcore.Entry{}, []zapcore.Field{{Type: zapcore.InlineMarshalerType, Interface: record}})
	if err != nil {
		// Encoding a record does not fail.
		w.dropped.Add(1)
		return
	}
	size := int64(line.Len())
	if w.pendingBytes.Add(size) <= maxPendingBytes {
		select {
		case w.lines <- line:
			return
		default:
		}
	}
	w.pendingBytes.Add(-size)
	line.Free()
	w.dropped.Add(1)
}

// Run writes lines until ctx ends, and then the pending ones for flushTime at most.
// It does not wait longer for a write that blocks, which cannot be canceled.
func (w *Writer) Run(ctx context.Context) {
	stop := make(chan struct{})
	written := make(chan struct{})
	go func() {
		defer close(written)
		w.write(ctx, stop)
	}()
	<-ctx.Done()
	close(stop)
	timer := time.NewTimer(flushTime)
	defer timer.Stop()
	select {
	case <-written:
	case <-timer.C:
		left := len(w.lines)
		w.dropped.Add(int64(left))
		klog.FromContext(ctx).Info("The access log was not written to its end, as its output is not read", "lines", left)
	}
}

// write writes lines until stop is closed and none is left.
func (w *Writer) write(ctx context.Context, stop <-chan struct{}) {
	var batch []byte
	failing := false
	for {
		select {
		case line := <-w.lines:
			batch = append(batch[:0], line.Bytes()...)
			lines := 1 + w.more(&batch, line)
			_, err := w.out.Write(batch)
			w.pendingBytes.Add(-int64(len(batch)))
			if err != nil {
				w.dropped.Add(int64(lines))
				if !failing {
					klog.FromContext(ctx).Error(err, "Failed to write the access log, dropping lines")
				}
			}
			failing = err != nil
		case <-stop:
			if len(w.lines) == 0 {
				return
			}
		}
	}
}

// more appends the pending lines to the batch, frees them and the first one, and
// returns how many it appended.
func (w *Writer) more(batch *[]byte, first *buffer.Buffer) (count int) {
	first.Free()
	for len(*batch) < batchBytes {
		select {
		case line := <-w.lines:
			*batch = append(*batch, line.Bytes()...)
			line.Free()
			count++
		default:
			return count
		}
	}
	return count
}
