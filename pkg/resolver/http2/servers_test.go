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
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
)

// exchange is a conversation of a client with a server, of which only the client is scripted.
type exchange struct {
	c *conversation
	// server is where the server listens, requests what it reports to have received.
	server   string
	requests *requests
}

// client returns the client.
func (d *exchange) client() *end { return d.c.clientEnd }

// release makes the server known to a resolver that does not know it.
func (d *exchange) release() {
	if d.c.route == held {
		d.client().sync()
		d.c.fixture.pods(d.server)
	}
}

// responded waits until the server has ended streams.
func (d *exchange) responded(streams ...uint32) {
	d.release()
	for _, stream := range streams {
		d.client().awaitStream(stream)
	}
}

// begun waits until the server has begun to respond on streams.
func (d *exchange) begun(streams ...uint32) {
	d.release()
	for _, stream := range streams {
		d.client().awaitResponse(stream)
	}
}

// seen waits until the server has seen n requests, if it reports any.
func (d *exchange) seen(n int) {
	d.release()
	if d.requests != nil {
		d.requests.await(n)
	}
}

// to are the fields of a POST to a path.
func to(path string, pairs ...string) []string {
	return append([]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "cart"}, pairs...)
}

// call are the fields of a gRPC call.
func call(method string, pairs ...string) []string {
	return to("/grpc.testing.TestService/"+method, append([]string{"content-type", "application/grpc", "te", "trailers"}, pairs...)...)
}

// message returns a gRPC message.
func message(m proto.Message) string {
	encoded, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded))), encoded...))
}

func simple(size int32) string { return message(&testpb.SimpleRequest{ResponseSize: size}) }

// large lets a server send all that it has.
var large = []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: maxWindow}}

// The servers, of which only the first reports what it has seen.
const (
	netServer  = "x/net"
	grpcServer = "gRPC"
)

// exchanges are held with each of the servers. What suits one of them is an odd
// request to the other.
var exchanges = []struct {
	name     string
	settings []http2.Setting
	// only is the server that takes its time over what is said to it: another ends
	// the stream at once, and how it takes what still comes is chance.
	only string
	play func(d *exchange)
}{
	{name: "requests", play: func(d *exchange) {
		d.client().headers(1, true, get("a", "b", "cookie", "c=d", "cookie", "e=f")...)
		d.client().headers(3, true, ":method", "HEAD", ":scheme", "http", ":path", "/head", ":authority", "cart")
		d.client().headers(5, true, ":method", "OPTIONS", ":scheme", "http", ":path", "*", ":authority", "cart")
		d.client().headers(7, true, to("/nothing")...)
		d.responded(1, 3, 5, 7)
	}},
	{name: "bodies", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/echo", "content-length", "8")...)
		d.client().data(1, false, "body")
		d.client().data(1, true, "more")
		d.client().headers(3, false, to("/echo")...)
		d.client().padded(3, false, long(10_000), 200)
		d.client().data(3, false, "")
		d.client().data(3, true, "")
		d.responded(1, 3)
	}},
	{name: "trailers", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/echo", "trailer", "t")...)
		d.client().data(1, false, "body")
		d.client().headers(1, true, "t", "1", "u", "2")
		d.responded(1)
	}},
	{name: "interim responses", only: netServer, play: func(d *exchange) {
		d.client().headers(1, true, to("/hints")...)
		d.client().headers(3, false, to("/echo", "expect", "100-continue")...)
		d.begun(3)
		d.client().data(3, true, "body")
		d.responded(1, 3)
	}},
	{name: "a response before the body is complete", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/early")...)
		d.responded(1)
		d.client().headers(3, true, get()...)
		d.responded(3)
	}},
	{name: "a body that is not what was said", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/echo", "content-length", "3")...)
		d.client().data(1, true, "more than that")
		d.client().headers(3, false, to("/echo", "content-length", "30")...)
		d.client().data(3, true, "less than that")
		d.responded(1, 3)
		d.seen(2)
	}},
	{name: "a server that breaks", play: func(d *exchange) {
		d.client().headers(1, true, to("/break")...)
		d.client().headers(3, true, to("/break/late")...)
		d.client().headers(5, true, get()...)
		d.responded(1, 3, 5)
	}},
	{name: "large responses", settings: large, play: func(d *exchange) {
		d.client().grant(0, 1<<30)
		d.client().headers(1, true, to("/large")...)
		d.client().headers(3, true, to("/large/headers")...)
		d.client().headers(5, false, call("UnaryCall")...)
		d.client().data(5, true, simple(500_000))
		d.responded(1, 3, 5)
	}},
	{name: "windows that open bit by bit", settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, play: func(d *exchange) {
		d.client().headers(1, true, to("/large")...)
		d.client().headers(3, false, call("UnaryCall")...)
		d.client().data(3, true, simple(100_000))
		d.client().grant(1, 1)
		d.begun(1, 3)
		d.client().grant(3, 10)
		d.client().settings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100_000})
		d.client().grant(0, 1<<21)
		d.client().grant(1, 1<<20)
		d.client().grant(3, 1<<20)
		d.responded(1, 3)
	}},
	{name: "tables that change", settings: []http2.Setting{{ID: http2.SettingHeaderTableSize, Val: 0}}, play: func(d *exchange) {
		// A server may acknowledge two SETTINGS at once when they come together, and
		// SETTINGS that come with a request after it has acted on them.
		d.client().awaitAck()
		d.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 300})
		d.client().awaitAck()
		d.client().headers(1, true, to("/fields", "a", "b")...)
		d.responded(1)
		d.client().headers(3, true, to("/fields", "a", "b")...)
		d.responded(3)
		d.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
		d.client().awaitAck()
		d.client().settings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 4096})
		d.client().awaitAck()
		d.client().headers(5, true, to("/fields", "a", "b")...)
		d.responded(5)
	}},
	{name: "header blocks in many pieces", play: func(d *exchange) {
		d.client().shaped(1, shape{end: true, splits: []int{0, 1, 9, 200}, padding: 9, priority: http2.PriorityParam{Weight: 3}}, to("/echo", "a", long(300))...)
		d.client().headers(3, true, to("/echo", "a", long(20_000))...)
		d.responded(1, 3)
	}},
	{name: "resets", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/echo")...)
		d.client().headers(3, false, to("/early")...)
		d.responded(3)
		d.client().data(1, false, "body")
		d.client().reset(1, http2.ErrCodeCancel)
		d.client().headers(5, true, get()...)
		d.responded(5)
		d.seen(3)
	}},
	{name: "unary calls", play: func(d *exchange) {
		d.client().headers(1, false, call("UnaryCall", "grpc-timeout", "10S", "echo", "hello")...)
		d.client().data(1, true, simple(10))
		d.client().headers(3, false, call("UnaryCall")...)
		d.client().data(3, false, message(&testpb.SimpleRequest{ResponseStatus: &testpb.EchoStatus{Code: 6, Message: "ça existe"}}))
		d.client().data(3, true, "")
		d.client().headers(5, false, call("NoSuchMethod")...)
		d.client().data(5, true, simple(1))
		d.responded(1, 3, 5)
	}},
	{name: "streaming calls", only: grpcServer, play: func(d *exchange) {
		d.client().headers(1, false, call("FullDuplexCall")...)
		for range 3 {
			d.client().data(1, false, message(&testpb.StreamingOutputCallRequest{Payload: payload(10)}))
		}
		d.begun(1)
		d.client().data(1, true, message(&testpb.StreamingOutputCallRequest{Payload: payload(20)}))
		d.responded(1)
	}},
	{name: "odd calls", play: func(d *exchange) {
		d.client().headers(1, true, get("content-type", "application/grpc")...)
		d.client().headers(3, true, to("/nothing", "content-type", "text/plain")...)
		d.client().headers(5, false, call("UnaryCall", "grpc-encoding", "unknown")...)
		d.client().data(5, true, "\x01"+simple(1)[1:])
		d.client().headers(7, false, call("UnaryCall", "grpc-timeout", "soon")...)
		d.client().data(7, true, simple(1))
		d.responded(1, 3, 5, 7)
	}},
	{name: "frames of unknown types", only: netServer, play: func(d *exchange) {
		d.client().raw(0xee, 0x5a, 0, "?")
		d.client().headers(1, false, to("/echo")...)
		d.client().raw(0x10, 0, 0, "\x00\x00\x00\x01u=1")
		d.client().raw(http2.FrameData, 0xf0|http2.FlagDataEndStream, 1, "flags")
		d.responded(1)
	}},
	{name: "a client leaves", only: netServer, play: func(d *exchange) {
		d.client().headers(1, false, to("/echo")...)
		d.client().goAway(0, http2.ErrCodeNo, "done")
		d.client().data(1, true, "body")
		d.responded(1)
	}},
}

// TestServersAreAlike compares what a client and real servers see of each other through a
// resolver with what they see directly.
func TestServersAreAlike(t *testing.T) {
	for _, name := range []string{netServer, grpcServer} {
		for _, test := range exchanges {
			if test.only != "" && test.only != name {
				continue
			}
			t.Run(name+", "+test.name, func(t *testing.T) {
				var client observed
				var requests string
				for _, by := range []route{direct, awake, held} {
					d := &exchange{c: &conversation{t: t, route: by}}
					if name == netServer {
						d.requests = newRequests()
						d.server = netPod(t, d.requests)
					} else {
						d.server = grpcPod(t)
					}
					d.c.clientEnd = d.c.connect(d.server, test.settings)
					test.play(d)
					got := d.c.clientEnd.observed()
					got.asClient()
					got.withoutFraming()
					if by == direct {
						client, requests = got, d.requests.String()
						continue
					}
					expectEqual(t, by, "client", got, client)
					if got := d.requests.String(); got != requests {
						t.Errorf("%s, the server sees\n%s\nand directly\n%s", by, got, requests)
					}
				}
			})
		}
	}
}

// requests are what a server has seen. Nil when the server does not report them.
type requests struct {
	mu      sync.Mutex
	seen    []string
	changed *sync.Cond
}

func newRequests() *requests {
	r := &requests{}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *requests) add(word string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, word)
	r.changed.Broadcast()
}

func (r *requests) await(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.seen) < n {
		r.changed.Wait()
	}
}

// String returns them in an order that does not depend on which came first.
func (r *requests) String() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Sorted(slices.Values(r.seen)), "\n")
}

// netPod serves with the server of golang.org/x/net.
func netPod(t *testing.T, seen *requests) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http2.Server{}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				server.ServeConn(conn, &http2.ServeConnOpts{Handler: seen, BaseConfig: &http.Server{ErrorLog: log.New(io.Discard, "", 0)}})
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		// Its connections have ended with their clients.
		running.Wait()
	})
	return listener.Addr().String()
}

// ServeHTTP notes a request and responds to it as its path says.
func (r *requests) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	word := fmt.Sprint(request.Method, " ", request.RequestURI, " ", request.Host, " ", request.ContentLength, " ", request.Header)
	switch request.URL.Path {
	case "/early":
		w.WriteHeader(http.StatusUnauthorized)
		r.add(word)
		return
	case "/break":
		r.add(word)
		panic(http.ErrAbortHandler)
	case "/break/late":
		_, _ = io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		r.add(word)
		panic(http.ErrAbortHandler)
	case "/hints":
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
	case "/large/headers":
		w.Header().Set("X-Large", long(50_000))
	case "/fields":
		w.Header()["X-Same"] = []string{"a", "a", long(100)}
	}
	body, err := io.ReadAll(request.Body)
	r.add(fmt.Sprint(word, " ", len(body), " ", err, " ", request.Trailer))
	w.Header().Set(http.TrailerPrefix+"X-Length", fmt.Sprint(len(body)))
	if request.URL.Path == "/large" {
		body = []byte(long(1 << 20))
	}
	_, _ = w.Write(body)
}
