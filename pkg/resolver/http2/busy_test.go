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
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// busyPod is a client and a pod that is sent one stream at a time and has one.
func busyPod(t *testing.T) (*fixture, *conversation) {
	t.Helper()
	c := newConversation(t, awake, nil, nil)
	// The limit is lowered once the client has got the SETTINGS with the number of streams.
	c.client().sync()
	c.fixture.service.Config().Limits.MaxConcurrencyPerPod = 1
	c.fixture.service.Apply(c.fixture.service.Config())
	c.client().headers(1, true, get()...)
	c.pod()
	return c.fixture, c
}

// TestStreamsWaitForTheirPod checks that the streams of a connection whose pod is busy
// reach it whole and in order, and that those which the client resets meanwhile do not.
func TestStreamsWaitForTheirPod(t *testing.T) {
	f, c := busyPod(t)
	c.client().headers(3, false, post("a", "b")...)
	c.client().data(3, false, "body")
	c.client().grant(3, 7)
	c.client().headers(5, false, post()...)
	c.client().data(5, false, "forgotten")
	c.client().headers(7, true, get("a", "b")...)
	f.held(3)
	c.client().reset(5, http2.ErrCodeCancel)
	c.client().padded(3, false, "more", 9)
	c.client().headers(3, true, "t", "1")
	f.held(2)
	for _, step := range [][2]uint32{{1, 3}, {3, 7}} {
		if seen := c.pod().observed(); len(seen.frames[step[1]]) > 0 {
			t.Errorf("the pod has %d and %d at once", step[0], step[1])
		}
		c.pod().headers(step[0], true, ok...)
		c.podEnd.awaitResponse(step[1])
	}
	c.podEnd.awaitStream(3)
	c.podEnd.headers(7, true, ok...)
	client, pod := c.clientEnd, c.podEnd
	client.awaitStream(7)
	seen := pod.observed()
	want := []string{
		`HEADERS :method="POST" :scheme="http" :path="/" :authority="cart" a="b" end=false`,
		"DATA 4:dba80bb2 length=4 end=false", "DATA 4:8b52f27c length=14 end=false", `HEADERS t="1" end=true`,
	}
	if !slices.Equal(seen.frames[3], want) || seen.grants[3] != 7 || len(seen.frames[5]) > 0 || len(seen.frames[7]) != 1 {
		t.Errorf("the pod has seen %s", seen.String())
	}
	// What was sent on the stream that the pod does not know of.
	if granted := client.observed().grants[0]; granted != uint64(len("forgotten")) {
		t.Errorf("the client was given back %d bytes", granted)
	}
	f.eventually(func() bool {
		return f.service.Queue().InFlight() == 0 && f.service.Queue().Held() == 0 && f.budget.Used() <= steps(podBytes)
	})
}

// TestStreamsWhosePodLeaves checks that the client may send streams again elsewhere that
// wait for a pod when it leaves.
func TestStreamsWhosePodLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		leave func(pod *end)
		want  string
	}{
		"with GOAWAY": {func(pod *end) { pod.goAway(1, http2.ErrCodeNo, "bye") }, `GOAWAY 1 NO_ERROR "bye"`},
		"without":     {func(pod *end) { pod.finish() }, `GOAWAY 1 NO_ERROR ""`},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := busyPod(t)
			c.client().headers(3, false, post()...)
			c.client().data(3, false, "body")
			c.client().headers(5, true, get()...)
			f.held(2)
			test.leave(c.podEnd)
			f.held(0)
			f.ended(2)
			c.podEnd.finish()
			c.clientEnd.awaitEnd()
			if seen := c.clientEnd.observed(); !slices.Contains(seen.frames[0], test.want) || seen.end != "end" {
				t.Errorf("the client has seen %s", seen.String())
			}
		})
	}
}

// TestAClientThatFinishesWhileItsPodIsBusy checks that the pod responds to the streams
// that it has got, and that those which wait for it are given up.
func TestAClientThatFinishesWhileItsPodIsBusy(t *testing.T) {
	f, c := busyPod(t)
	c.client().headers(3, true, get()...)
	f.held(1)
	c.clientEnd.finish()
	f.held(0)
	c.podEnd.headers(1, true, ok...)
	c.clientEnd.awaitStream(1)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 })
	if seen := c.podEnd.observed(); len(seen.frames[3]) > 0 {
		t.Errorf("the pod has seen %s", seen.String())
	}
	c.podEnd.finish()
	c.clientEnd.awaitEnd()
}

// TestStreamsThatWaitCountAsHeld checks that streams that wait for a busy pod count for
// the limit of the service, which is reported as for any held request.
func TestStreamsThatWaitCountAsHeld(t *testing.T) {
	f := newFixture(t, func(c *service.Config) { c.Limits.MaxConcurrencyPerPod, c.Limits.MaxPending = 2, 1 })
	f.pods(rawPod(t, func(w *wire) {
		if !w.greet() {
			return
		}
		// It ends with the connection.
		_, _ = io.Copy(io.Discard, w.Conn)
	}))
	busy, w := dialWire(t, f.address), dialWire(t, f.address)
	w.headers(1, true, get()...)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 1 })
	busy.headers(1, true, get()...)
	f.eventually(func() bool { return f.service.Queue().InFlight() == 2 })
	w.headers(3, true, get()...)
	f.held(1)
	busy.headers(3, true, get()...)
	if fields := busy.decode(await[*http2.HeadersFrame](busy)); fields[":status"] != "503" || !strings.Contains(fields["x-elasti-answer"], "TooManyPending") {
		t.Errorf("got %v", fields)
	}
	w.Close()
	busy.Close()
	f.eventually(func() bool { return f.service.Queue().InFlight() == 0 && f.service.Queue().Held() == 0 })
}

// TestAStreamDoesNotOvertakeAnEarlierOne checks the order of two streams whose waits end
// between the moments at which each of them is checked.
func TestAStreamDoesNotOvertakeAnEarlierOne(t *testing.T) {
	limits := hold.Limits{MaxPending: 10, MaxConcurrencyPerPod: 1}
	f := newFixture(t, func(c *service.Config) { c.Limits = limits })
	f.pods("127.0.0.1:1")
	client, theirs := net.Pipe()
	defer client.Close()
	pod, podEnd := net.Pipe()
	defer podEnd.Close()
	c := newConn(f.server, theirs, nil, f.service.Memory(), destination.Fixed(f.service, service.Port{Number: 80}))
	defer c.end()
	c.bind(f.service, service.Port{Number: 80})
	queue := f.service.Queue()
	lease, ok := queue.TryTake("")
	if !ok {
		t.Fatal("there is no pod")
	}
	c.startPod(pod, lease, nil)
	for _, id := range []uint32{3, 5} {
		s := &stream{id: id, clientEnded: true}
		c.keep(s)
		c.join(s, false)
	}
	limits.MaxConcurrencyPerPod = 3
	queue.SetLimits(limits)
	first, second := c.held[0], c.held[1]
	if !first.held.resolved.Load() || !second.held.resolved.Load() {
		t.Fatal("the streams wait still")
	}
	// It was checked before its wait ended.
	first.held.resolved.Store(false)
	c.forwardResolved()
	if len(c.streams) > 0 {
		t.Errorf("stream %d is forwarded before an earlier one", c.podStream)
	}
	first.held.resolved.Store(true)
	c.forwardResolved()
	if len(c.streams) != 2 || len(c.held) > 0 {
		t.Errorf("%d are forwarded, %d held", len(c.streams), len(c.held))
	}
	lease.Release()
}
