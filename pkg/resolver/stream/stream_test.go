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
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture serves one service, on loopback.
type fixture struct {
	*resolvertest.Fixture
	t *testing.T
	// handedBack has what Serve returned for each connection.
	handedBack chan string
}

// tuning has the settings of a test.
type tuning struct {
	// initial has the bytes that were read from each connection before.
	initial  string
	change   func(*service.Config)
	greeting time.Duration
	greets   sniff.Greeting
}

func newFixture(t *testing.T, tuned tuning) *fixture {
	t.Helper()
	f := &fixture{Fixture: resolvertest.New(t, tuned.change), t: t, handedBack: make(chan string, 100)}
	server := New(Options{Greeting: tuned.greeting})
	f.Serve(func(ctx context.Context, conn *net.TCPConn) {
		f.handedBack <- string(server.Serve(ctx, conn, []byte(tuned.initial), Destination{
			Service: f.Service, Port: service.Port{Number: 5432}, Greets: tuned.greets,
			Other: func(first []byte) bool { return bytes.HasPrefix(first, []byte("GET ")) },
		}))
	})
	return f
}

// silent waits until so many silent connections wait for a pod and are with one.
func (f *fixture) silent(waiting, leased int) {
	f.t.Helper()
	resolvertest.Eventually(f.t, func() bool {
		w, l := f.Service.Queue().Silent()
		return w == waiting && l == leased
	})
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("read %q (%v), want %q", got[:n], err, want)
	}
}

// expectReset reads a text and then the end of the connection, which must be a
// reset.
func expectReset(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got, err := io.ReadAll(conn)
	if string(got) != want || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes and %v, want %d and a reset", len(got), err, len(want))
	}
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

// echo is a pod that sends back what it receives.
func echo(conn *net.TCPConn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.CloseWrite()
}

func TestServerSpeaksFirst(t *testing.T) {
	f := newFixture(t, tuning{})
	conn := f.Client()
	f.Held(1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "220 ready\r\n")
		got, _ := io.ReadAll(conn)
		_, _ = io.WriteString(conn, "you said "+string(got))
	}))
	expect(t, conn, "220 ready\r\n")
	send(t, conn, "QUIT")
	_ = conn.CloseWrite()
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "you said QUIT" {
		t.Fatalf("got %q, %v", rest, err)
	}
	if record := f.Record(1); record.Outcome != accesslog.Forwarded || !record.Held || record.BytesIn != 4 || record.BytesOut != int64(len("220 ready\r\nyou said QUIT")) {
		t.Errorf("the record is %+v", record)
	}
}

// A client that sends everything and closes its writing side while it is held still gets
// its response. The bytes that were read to detect the protocol come first.
func TestHalfCloseWhileHeld(t *testing.T) {
	f := newFixture(t, tuning{initial: "first "})
	conn := f.Client()
	send(t, conn, "second")
	_ = conn.CloseWrite()
	f.Held(1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		got, _ := io.ReadAll(conn)
		_, _ = io.WriteString(conn, "you said "+string(got))
	}))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "you said first second" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPodFinishesFirst(t *testing.T) {
	f := newFixture(t, tuning{})
	podGot := make(chan string, 1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "all of it")
		_ = conn.CloseWrite()
		got, _ := io.ReadAll(conn)
		podGot <- string(got)
	}))
	conn := f.Client()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "all of it" {
		t.Fatalf("got %q, %v", got, err)
	}
	send(t, conn, "thanks")
	conn.Close()
	if got := <-podGot; got != "thanks" {
		t.Errorf("the pod got %q", got)
	}
}

func TestLargeTransferBothWays(t *testing.T) {
	f := newFixture(t, tuning{})
	f.Pods(resolvertest.Listen(t, echo))
	conn := f.Client()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<19)
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := conn.Write(sent); err != nil {
			t.Error(err)
		}
		_ = conn.CloseWrite()
	})
	got, err := io.ReadAll(conn)
	sending.Wait()
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d bytes came back of %d (%v)", len(got), len(sent), err)
	}
	if record := f.Record(1); record.BytesIn != int64(len(sent)) || record.BytesOut != int64(len(sent)) {
		t.Errorf("the record is %+v", record)
	}
}

func TestClientGoneFreesItsPlace(t *testing.T) {
	f := newFixture(t, tuning{initial: "hello"})
	conn := f.Client()
	f.Held(1)
	reset(conn)
	f.Held(0)
	if record := f.Record(1); record.Outcome != accesslog.ClientGone {
		t.Errorf("the outcome is %s", record.Outcome)
	}
}

func TestOverALimitIsReset(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*service.Config)
		reason string
	}{
		"maxPending":   {func(c *service.Config) { c.Limits.MaxPending = 0 }, "TooManyPending"},
		"hold timeout": {func(c *service.Config) { c.HoldTimeout = 10 * time.Millisecond }, "HoldTimeout"},
	} {
		for initial, greets := range map[string]sniff.Greeting{"hello": sniff.EitherGreets, "": sniff.ServerGreets} {
			t.Run(name+" "+initial, func(t *testing.T) {
				f := newFixture(t, tuning{initial: initial, change: test.change, greets: greets})
				// The reset may be faster than the client.
				conn, err := net.Dial("tcp", f.Address)
				if err == nil {
					defer conn.Close()
					_, err = conn.Read(make([]byte, 1))
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("got %v, want a reset", err)
				}
				if record := f.Record(1); record.Reason != test.reason {
					t.Errorf("the reason is %q", record.Reason)
				}
			})
		}
	}
}

// The bytes that one side has sent before a reset arrive, followed by the reset.
func TestResetOfThePodReachesTheClient(t *testing.T) {
	for name, last := range map[string]string{"in the middle": "", "after its last words": "bye"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{})
			f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
				_, _ = conn.Read(make([]byte, 1))
				_, _ = io.WriteString(conn, last)
				if last != "" {
					// A reset drops unsent bytes.
					_, _ = conn.Read(make([]byte, 1))
				}
				reset(conn)
			}))
			conn := f.Client()
			send(t, conn, "x")
			if last != "" {
				expect(t, conn, last)
				send(t, conn, "y")
			}
			expectReset(t, conn, "")
			if record := f.Record(1); record.Outcome != accesslog.Failed {
				t.Errorf("the outcome is %s", record.Outcome)
			}
			f.InFlight(0)
		})
	}
}

func TestResetOfTheClientReachesThePod(t *testing.T) {
	f := newFixture(t, tuning{})
	ended := make(chan error, 1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "welcome")
		_, err := io.ReadAll(conn)
		ended <- err
	}))
	conn := f.Client()
	send(t, conn, "x")
	expect(t, conn, "welcome")
	reset(conn)
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the pod gets %v, want a reset", err)
	}
	if record := f.Record(1); record.Outcome != accesslog.ClientGone {
		t.Errorf("the outcome is %s", record.Outcome)
	}
}

// A pod that responds and closes before it has read everything resets the connection.
// Its response arrives nevertheless.
func TestEarlyResponseArrivesBeforeTheReset(t *testing.T) {
	f := newFixture(t, tuning{})
	response := string(bytes.Repeat([]byte("no "), 1<<10))
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_, _ = io.WriteString(conn, response)
	}))
	conn := f.Client()
	var sending sync.WaitGroup
	sending.Go(func() {
		data := make([]byte, 1<<20)
		for {
			if _, err := conn.Write(data); err != nil {
				return
			}
		}
	})
	expect(t, conn, response)
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection ends with %v", err)
	}
	conn.Close()
	sending.Wait()
	if record := f.Record(1); record.Outcome != accesslog.Failed || record.BytesOut != int64(len(response)) {
		t.Errorf("the record is %+v", record)
	}
}

// A connection whose first bytes, after a silent wait, are of another protocol is handed
// back together with those bytes.
func TestOtherProtocolIsHandedBack(t *testing.T) {
	f := newFixture(t, tuning{})
	podGot := make(chan string, 1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		got, _ := io.ReadAll(conn)
		podGot <- string(got)
	}))
	conn := f.Client()
	f.silent(0, 1)
	send(t, conn, "GET / HTTP/1.1\r\n")
	if got := <-f.handedBack; got != "GET / HTTP/1.1\r\n" {
		t.Errorf("%q is handed back", got)
	}
	if got := <-podGot; got != "" {
		t.Errorf("the pod got %q", got)
	}
	f.InFlight(0)
	f.silent(0, 0)
}

// The protocol of a client that was silent at first is detected while it waits for a pod.
func TestOtherProtocolIsHandedBackWhileItWaits(t *testing.T) {
	for name, greeting := range map[string]time.Duration{"silently": time.Hour, "and wakes the target": 0} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{greeting: greeting})
			conn := f.Client()
			if greeting == 0 {
				f.Held(1)
			} else {
				f.silent(1, 0)
			}
			send(t, conn, "GET / HTTP/1.1\r\n")
			if got := <-f.handedBack; got != "GET / HTTP/1.1\r\n" {
				t.Errorf("%q is handed back", got)
			}
			f.Held(0)
			f.silent(0, 0)
		})
	}
}

func TestFirstBytesOfAStreamWaitForThePod(t *testing.T) {
	f := newFixture(t, tuning{})
	conn := f.Client()
	f.Held(1)
	send(t, conn, "\x00words")
	f.Held(1)
	f.Pods(resolvertest.Listen(t, echo))
	send(t, conn, " and more")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "\x00words and more" {
		t.Errorf("read %q, %v", got, err)
	}
}

// A reset of one side is passed on to the other, also when that neither reads nor writes.
func TestResetOfOneSideReachesTheOtherThatDoesNotRead(t *testing.T) {
	flood := func(conn *net.TCPConn) {
		part := make([]byte, 64<<10)
		for {
			_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			if _, err := conn.Write(part); err != nil {
				reset(conn)
				return
			}
		}
	}
	nonReading := func(conn *net.TCPConn) { _ = conn.SetReadBuffer(4 << 10) }
	for name, test := range map[string]struct {
		client, pod func(*net.TCPConn)
		want        accesslog.Outcome
	}{
		"of the client": {flood, nonReading, accesslog.ClientGone},
		"of the pod":    {nonReading, flood, accesslog.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{initial: "x"})
			ended := make(chan struct{})
			defer close(ended)
			f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
				test.pod(conn)
				<-ended
			}))
			test.client(f.Client())
			if record := f.Record(1); record.Outcome != test.want {
				t.Errorf("the record is %+v", record)
			}
			f.InFlight(0)
		})
	}
}
