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
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
)

// unreadBody is a request with a body that is larger than what the kernels and the
// resolver take of it.
const unreadBody = 1 << 20

// sendEndless sends a request and as much of its body as is read.
func (w *testbed) sendEndless(client *sockettest.Conn, header string) {
	w.running.Go(func() {
		// It fails when the client leaves.
		_, _ = io.WriteString(client, header+strings.Repeat("x", unreadBody))
	})
}

// respondUnread makes the pod respond to a header, and read nothing of the body.
func (w *testbed) respondUnread(response string) {
	w.pod = func(conn *sockettest.Conn) {
		defer conn.Close()
		if _, err := http.ReadRequest(bufio.NewReaderSize(oneByte{conn}, 16)); err != nil {
			w.t.Error(err)
			return
		}
		send(w.t, conn, response)
		_ = conn.WaitReset()
	}
}

// oneByte reads one byte at a time, so that nothing after a header is read with it.
type oneByte struct{ io.Reader }

func (r oneByte) Read(data []byte) (int, error) { return r.Reader.Read(data[:1]) }

// A pod that responds and then reads no more keeps a client that has left from being
// noticed. It gives up its place, and does not count as use any more.
func TestClientLeavesAfterAResponseToABodyThatIsNotRead(t *testing.T) {
	const rejected = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"
	for name, test := range map[string]struct{ header, response string }{
		"sized":    {fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", unreadBody), rejected},
		"chunked":  {fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", unreadBody), rejected},
		"upgraded": {strings.TrimSuffix(upgradeGet, "\r\n") + fmt.Sprintf("Content-Length: %d\r\n\r\n", unreadBody), switching},
	} {
		t.Run(name, func(t *testing.T) {
			inTestbed(t, true, nil, func(w *testbed) {
				w.respondUnread(test.response)
				client := w.client()
				w.sendEndless(client, test.header)
				expect(t, client, test.response)
				w.pause(time.Hour)
				w.inFlight(1)
				client.Reset()
				w.pause(5 * silence)
				w.inFlight(0)
				if open := w.service.Traffic().Open(); open != 0 {
					t.Errorf("%d requests count as use", open)
				}
				want := accesslog.Forwarded
				if test.response == switching {
					want = accesslog.ClientGone
				}
				if record := w.record(); record.Outcome != want {
					t.Errorf("the record is %+v", record)
				}
			})
		})
	}
}

// A client whose end is seen, but not whether it has left, has sent everything: a pod that
// reads gets it, however slowly, and one that does not is given up in the end.
func TestClientFinishesAfterAResponseToABodyThatIsNotRead(t *testing.T) {
	const (
		timeout = time.Minute
		body    = 10 << 10
		header  = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10240\r\n\r\n"
		early   = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
	)
	limit := func(_ *service.Config, options *Options) { options.BodyTimeout = timeout }
	finish := func(w *testbed) {
		client := w.client()
		send(w.t, client, header)
		expect(w.t, client, early)
		send(w.t, client, strings.Repeat("x", body))
		client.Close()
		w.pause(timeout / 2)
		w.inFlight(1)
	}
	t.Run("and is not", func(t *testing.T) {
		inTestbed(t, true, limit, func(w *testbed) {
			w.respondUnread(early)
			finish(w)
			w.pause(timeout)
			w.inFlight(0)
		})
	})
	t.Run("and is slowly", func(t *testing.T) {
		inTestbed(t, true, limit, func(w *testbed) {
			var got int64
			w.pod = func(conn *sockettest.Conn) {
				defer conn.Close()
				expect(w.t, conn, header)
				send(w.t, conn, early)
				for {
					<-time.After(timeout * 3 / 4)
					n, err := io.CopyN(io.Discard, conn, 1<<10)
					got += n
					if err != nil {
						return
					}
				}
			}
			finish(w)
			w.pause(2 * body / (1 << 10) * timeout)
			w.inFlight(0)
			if got != body {
				t.Errorf("the pod got %d bytes, want %d", got, body)
			}
		})
	})
}
