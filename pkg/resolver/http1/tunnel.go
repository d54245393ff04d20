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
	"net/http"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
)

// tunnel passes on that the pod switches protocols, and then carries bytes. What
// is still to come of the request goes before those of the client.
func (e *exchange) tunnel() error {
	c := e.client
	c.record.Status = http.StatusSwitchingProtocols
	c.record.Answered = time.Now()
	if e.endWatch() {
		return hold.ErrClientGone
	}
	e.started, e.last = true, true
	if err := e.sendClient(e.pod.in.unread()); err != nil {
		return err
	}
	e.pod.in.release()
	if err := e.pod.tcp.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	client, pod := streamOf(c.tcp), streamOf(e.pod.tcp)
	var fromPod sync.WaitGroup
	var out int64
	fromPod.Add(1)
	end := func() { client.Close(); pod.Close() }
	c.server.options.Tasks.Go(end, func() {
		defer fromPod.Done()
		out = stream.Carry(client, pod)
	})
	if e.sendAhead() {
		c.record.BytesIn += stream.Carry(pod, client)
	} else {
		end()
	}
	fromPod.Wait()
	c.record.BytesOut += out
	return nil
}

// sendAhead sends the rest of the request, and what the client has sent after it,
// and reports whether it could.
func (e *exchange) sendAhead() bool {
	c := e.client
	if e.body != nil {
		if <-e.body.done; !e.body.sent {
			return false
		}
	}
	c.in.consume(e.consumed())
	e.whole, e.body = 0, nil
	if ahead := c.in.unread(); len(ahead) > 0 {
		if _, err := e.pod.Write(ahead); err != nil {
			return false
		}
	}
	c.in.release()
	return c.setReadDeadline(time.Time{}) == nil
}

// streamOf returns what the kernel moves bytes between.
func streamOf(conn socket.Conn) stream.Conn {
	if tcp, ok := conn.(*socket.TCP); ok {
		return tcp.TCPConn
	}
	return conn
}
