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

// wordsSize bounds what is read of the first words of either side.
const wordsSize = 1 << 10

// past is a time that every deadline has passed.
var past = time.Unix(1, 0)

// errSilence is returned when neither side has said anything in time.
var errSilence = errors.New("neither side has said anything")

// words are what was read of the first words of both sides, and whether a side
// has ended instead. The end is there to be read again.
type words struct {
	client, pod           []byte
	clientEnded, podEnded bool
}

// firstWords waits until one of two connections has something to read, and
// returns what was read from each: from one of them, or by chance from both. It
// fails with errSilence when there is nothing for so long (0: for ever), with
// hold.ErrClientGone when the client has broken, and otherwise when the pod has, or
// the connections are closed. The end of ctx closes both.
func firstWords(ctx context.Context, tasks *task.Runner, client, pod *net.TCPConn, patience time.Duration) (words, error) {
	stop := context.AfterFunc(ctx, func() { client.Close(); pod.Close() })
	defer stop()
	if patience > 0 {
		// It fails only when the connection is closed, which ends the wait too.
		_ = client.SetReadDeadline(time.Now().Add(patience))
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
			return words{}, fmt.Errorf("carrying on after the first words: %w", err)
		}
	}
	if !podReady && !clientReady {
		return words{}, errSilence
	}
	var first words
	var err error
	if podReady {
		if first.pod, err = readOnce(pod); err != nil {
			return words{}, fmt.Errorf("the connection to the pod: %w", err)
		}
		first.podEnded = len(first.pod) == 0
	}
	if clientReady {
		if first.client, err = readOnce(client); err != nil {
			return words{}, hold.ErrClientGone
		}
		first.clientEnded = len(first.client) == 0
	}
	return first, nil
}

// readOnce returns what one read yields: nothing at the end of the connection, which
// is there to be read again. That it broke is not: the kernel says so once.
func readOnce(conn io.Reader) ([]byte, error) {
	words := make([]byte, wordsSize)
	n, err := conn.Read(words)
	if n > 0 || errors.Is(err, io.EOF) {
		err = nil
	}
	return words[:n], err
}
