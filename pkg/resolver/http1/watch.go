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

package http1

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// clientWatch waits for the client of an exchange to go away while its pod is
// silent.
type clientWatch struct {
	client *conn
	pod    *podConn
	closed atomic.Bool
	done   sync.WaitGroup
}

// watchClient begins to watch. When the client goes away, a read from the pod
// is interrupted by its deadline.
func watchClient(client *conn, pod *podConn) *clientWatch {
	w := &clientWatch{client: client, pod: pod}
	// A connection that is closed already ends the watch at once.
	_ = client.setReadDeadline(time.Time{})
	w.done.Add(1)
	client.server.options.Tasks.Go(w.abandon, func() {
		defer w.done.Done()
		if err := w.wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
			w.closed.Store(true)
			_ = pod.tcp.SetReadDeadline(past)
		}
	})
	return w
}

// abandon ends both connections after a panic.
func (w *clientWatch) abandon() {
	w.client.tcp.Reset()
	w.pod.tcp.Reset()
}

// wait blocks until the client has left.
func (w *clientWatch) wait() error {
	if err := w.client.tcp.WaitClosed(); err != nil {
		return err
	}
	if !w.client.probe() {
		// In the middle of a response nothing can be sent that is not a part of it.
		// What the client did is passed on, and the pod does what it would do then.
		_ = w.pod.tcp.CloseWrite()
	}
	return w.client.tcp.WaitReset()
}

func (w *clientWatch) clientClosed() bool { return w.closed.Load() }

// stop ends the watch and reports whether the client has left.
func (w *clientWatch) stop() bool {
	_ = w.client.tcp.SetReadDeadline(past)
	w.done.Wait()
	_ = w.client.setReadDeadline(time.Time{})
	// A pod to which the end of the client was passed on may end before a reset is noticed.
	return w.closed.Load() || w.client.tcp.Broken()
}
