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
	"net/http"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/stream"
)

// tunnel passes on that the pod switches protocols, and then carries bytes. What
// is still to come of the request goes before those of the client.
func (e *exchange) tunnel() error {
	c := e.client
	c.record.Status = http.StatusSwitchingProtocols
	c.record.Responded = time.Now()
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
	joined := stream.Join(c.server.options.Tasks, c.tcp, e.pod.tcp, e.sendAhead)
	c.record.BytesIn += joined.AToB
	c.record.BytesOut += joined.BToA
	switch {
	case joined.ABroke != nil:
		return hold.ErrClientGone
	case joined.BBroke != nil:
		return joined.BBroke
	}
	return nil
}

// sendAhead sends the rest of the request, and what the client has sent after it.
func (e *exchange) sendAhead() error {
	c := e.client
	if e.body != nil {
		// A client that has finished may wait for what the pod sends.
		if e.body.awaitWhole(0); !e.body.sent {
			if e.body.err() != nil {
				return hold.ErrClientGone
			}
			return errPodCut
		}
	}
	c.in.consume(e.consumed())
	e.whole, e.body = 0, nil
	if ahead := c.in.unread(); len(ahead) > 0 {
		if _, err := e.pod.Write(ahead); err != nil {
			return err
		}
	}
	c.in.release()
	if c.setReadDeadline(time.Time{}) != nil {
		return hold.ErrClientGone
	}
	return nil
}

// errPodCut means that a pod does not take the rest of a request.
var errPodCut = errors.New("the pod closed the connection before it had the whole request")
