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

package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// firstBytesSize bounds how many of the first bytes of either side are read.
const firstBytesSize = 1 << 10

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// errSilence is returned when neither side has sent anything in time.
var errSilence = errors.New("neither side has sent anything")

// firstBytes are the first bytes of both sides, and whether a side has ended without
// having sent any. The end can be read again.
type firstBytes struct {
	client, pod           []byte
	clientEnded, podEnded bool
}

// awaitFirstBytes waits until one of two connections has something to read, and returns
// the bytes that were read from it, or by chance from both. It fails with errSilence
// after the timeout (0: no timeout), with hold.ErrClientGone when the connection of the
// client broke, and with another error when that of the pod did or both are closed. The
// end of ctx closes both.
func awaitFirstBytes(ctx context.Context, tasks *task.Runner, client, pod *net.TCPConn, timeout time.Duration) (firstBytes, error) {
	stop := context.AfterFunc(ctx, func() { client.Close(); pod.Close() })
	defer stop()
	if timeout > 0 {
		// It fails only when the connection is closed, which also ends the wait.
		_ = client.SetReadDeadline(time.Now().Add(timeout))
	}
	podReady := false
	waited := make(chan struct{})
	tasks.Go(func() { client.Close(); close(waited) }, func() {
		podReady = socket.WaitReadable(pod) == nil
		// As above.
		_ = client.SetReadDeadline(past)
		close(waited)
	})
	clientReady := socket.WaitReadable(client) == nil
	_ = pod.SetReadDeadline(past)
	<-waited
	for _, conn := range []*net.TCPConn{client, pod} {
		if err := conn.SetReadDeadline(time.Time{}); err != nil {
			return firstBytes{}, fmt.Errorf("continuing after the first bytes: %w", err)
		}
	}
	if !podReady && !clientReady {
		return firstBytes{}, errSilence
	}
	var first firstBytes
	var err error
	if podReady {
		if first.pod, err = readOnce(pod); err != nil {
			return firstBytes{}, fmt.Errorf("the connection to the pod: %w", err)
		}
		first.podEnded = len(first.pod) == 0
	}
	if clientReady {
		if first.client, err = readOnce(client); err != nil {
			return firstBytes{}, hold.ErrClientGone
		}
		first.clientEnded = len(first.client) == 0
	}
	return first, nil
}

// readOnce returns the bytes of one read. It returns none at the end of the connection,
// which can be read again. An error is returned, because the kernel reports it once only.
func readOnce(conn io.Reader) ([]byte, error) {
	data := make([]byte, firstBytesSize)
	n, err := conn.Read(data)
	if n > 0 || errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}
