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
	"time"

	"golang.org/x/net/http2"
)

// route is how a client reaches a pod.
type route string

const (
	direct route = "direct"
	// awake: through a resolver that knows the pod from the beginning.
	awake route = "awake"
	// held: through a resolver that holds what the client says until the pod has
	// its first turn.
	held route = "held"
)

// conversation is what a client and a pod say to each other, one after the other.
type conversation struct {
	t     *testing.T
	route route
	pods  net.Listener
	// fixture is nil for a direct one.
	fixture     *fixture
	podSettings []http2.Setting

	clientEnd, podEnd *end
	// turn is the end that spoke last.
	turn *end
	// earlyPings are the PINGs of the client before the pod had its first turn.
	earlyPings []string
	// resetBytes has the streams that the client has reset before that, and how many
	// of their bytes flow control counts.
	resetBytes map[uint32]uint64
}

func newConversation(t *testing.T, by route, client, pod []http2.Setting) *conversation {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	c := &conversation{t: t, route: by, pods: listener, podSettings: pod, resetBytes: map[uint32]uint64{}}
	c.clientEnd = c.connect(listener.Addr().String(), client)
	c.turn = c.clientEnd
	return c
}

// connect connects the client to the pod that listens at an address.
func (c *conversation) connect(pod string, settings []http2.Setting) *end {
	c.t.Helper()
	address := pod
	if c.route != direct {
		c.fixture = newFixture(c.t, nil)
		address = c.fixture.address
	}
	if c.route == awake {
		c.fixture.pods(pod)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	e := newEnd(c.t, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		c.t.Fatal(err)
	}
	e.settings(settings...)
	go e.read()
	c.t.Cleanup(func() { conn.Close(); <-e.done })
	return e
}

// client returns the client, whose turn it is once it has seen all that the pod
// has said.
func (c *conversation) client() *end {
	if c.turn != c.clientEnd {
		c.turn.sync()
		c.turn = c.clientEnd
	}
	return c.clientEnd
}

// pod returns the pod, whose turn it is once it has seen all that the client has
// said. The first turn releases what a resolver holds.
func (c *conversation) pod() *end {
	c.t.Helper()
	if c.podEnd == nil {
		c.release()
	}
	if c.turn != c.podEnd {
		c.turn.sync()
		c.turn = c.podEnd
	}
	return c.podEnd
}

func (c *conversation) release() {
	c.t.Helper()
	if c.route == held {
		// It has all been read once this is acknowledged.
		c.clientEnd.sync()
		c.fixture.pods(c.pods.Addr().String())
	}
	_ = c.pods.(*net.TCPListener).SetDeadline(time.Now().Add(wireTimeout))
	conn, err := c.pods.Accept()
	if err != nil {
		c.t.Fatalf("the pod was not connected to: %v", err)
	}
	e := newEnd(c.t, conn)
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != http2.ClientPreface {
		c.t.Fatalf("the pod got %q, %v", preface, err)
	}
	e.settings(c.podSettings...)
	go e.read()
	c.t.Cleanup(func() { conn.Close(); <-e.done })
	c.podEnd = e
}

// forget resets a stream that the pod may never have seen.
func (c *conversation) forget(stream uint32, code http2.ErrCode, received int) {
	c.client().reset(stream, code)
	if c.podEnd == nil {
		c.resetBytes[stream] = uint64(received)
	}
}

// ping has the client send a PING that the pod need not see.
func (c *conversation) ping(text string) {
	c.client().ping(text)
	if c.podEnd == nil {
		c.earlyPings = append(c.earlyPings, text)
	}
}

// finish returns what the client and the pod have seen, without what differs as
// is documented.
func (c *conversation) finish() (client, pod observed) {
	c.t.Helper()
	if !c.clientEnd.over() && (c.podEnd == nil || !c.podEnd.over()) {
		c.pod().sync()
		c.client().sync()
	}
	client, pod = c.clientEnd.observed(), c.podEnd.observed()
	client.asClient()
	pod.asPod()
	for stream, bytes := range c.resetBytes {
		delete(pod.frames, stream)
		delete(pod.grants, stream)
		if c.route == held {
			client.grants[0] -= bytes
		}
	}
	pod.frames[0] = slices.DeleteFunc(pod.frames[0], func(word string) bool {
		return slices.ContainsFunc(c.earlyPings, func(text string) bool { return strings.HasPrefix(word, "PING") && strings.Contains(word, text) })
	})
	return client, pod
}

// over reports whether the end has seen the connection end.
func (e *end) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen.end != ""
}

func (e *end) observed() observed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen.copy()
}

// expectEqual fails the test where what an end sees is not what it sees directly.
func expectEqual(t *testing.T, by route, end string, got, want observed) {
	t.Helper()
	if got, want := got.String(), want.String(); got != want {
		t.Errorf("%s, the %s sees\n%s\nand directly\n%s", by, end, got, want)
	}
}
