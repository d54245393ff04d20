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
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture serves one service, on loopback.
type fixture struct {
	t       *testing.T
	service *service.Service
	address string
	records chan accesslog.Record
	// handedBack has what Serve returned for each connection.
	handedBack chan string
}

func newFixture(t *testing.T, initial string, change func(*service.Config)) *fixture {
	t.Helper()
	config := &service.Config{Mode: v1alpha1.ModeProxy, HoldTimeout: time.Minute, Limits: hold.Limits{MaxPending: 10}}
	if change != nil {
		change(config)
	}
	f := &fixture{t: t, records: make(chan accesslog.Record, 100), handedBack: make(chan string, 100)}
	f.service = service.New(service.Options{
		Namespace: "shop", Name: "db", PublicService: "db", Config: config,
		Budget: memory.NewBudget(memory.Limits{Process: 1 << 30}), Logger: klog.Background(),
		Finish: func(record *accesslog.Record) { f.records <- *record },
	})
	ctx, cancel := context.WithCancel(context.Background())
	f.address = listen(t, func(conn *net.TCPConn) {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		f.handedBack <- string(Serve(ctx, conn, []byte(initial), f.service, service.Port{Number: 5432}, func(words []byte) bool {
			return bytes.HasPrefix(words, []byte("GET "))
		}))
	})
	t.Cleanup(func() {
		f.service.Close()
		cancel()
	})
	return f
}

// listen hands connections to serve, which owns them.
func listen(t *testing.T, serve func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

func (f *fixture) pod(address string) {
	at := netip.MustParseAddrPort(address)
	f.service.SetPods([]endpoint.Description{{
		ID: address, Addresses: []netip.Addr{at.Addr()}, Ports: map[string]uint16{"": at.Port()}, Ready: true,
	}})
}

func (f *fixture) client() *net.TCPConn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		f.t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func (f *fixture) held(n int) {
	f.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for f.service.Queue().Held() != n {
		select {
		case <-tick.C:
		case <-deadline.C:
			f.t.Fatalf("%d are held, want %d", f.service.Queue().Held(), n)
		}
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	f := newFixture(t, "", nil)
	conn := f.client()
	f.held(1)
	f.pod(listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "220 ready\r\n")
		got, _ := io.ReadAll(conn)
		_, _ = io.WriteString(conn, "you said "+string(got))
	}))
	greeting := make([]byte, len("220 ready\r\n"))
	if _, err := io.ReadFull(conn, greeting); err != nil || string(greeting) != "220 ready\r\n" {
		t.Fatalf("got %q, %v", greeting, err)
	}
	_, _ = io.WriteString(conn, "QUIT")
	_ = conn.CloseWrite()
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "you said QUIT" {
		t.Fatalf("got %q, %v", rest, err)
	}
	if record := <-f.records; record.Outcome != accesslog.Forwarded || !record.Held || record.BytesIn != 4 || record.BytesOut != int64(len("220 ready\r\nyou said QUIT")) {
		t.Errorf("the record is %+v", record)
	}
}

// A client that says all it has to say while it is held, and finishes, still
// gets its answer; bytes that were read to find out what it speaks come first.
func TestHalfCloseWhileHeld(t *testing.T) {
	f := newFixture(t, "first ", nil)
	conn := f.client()
	_, _ = io.WriteString(conn, "second")
	_ = conn.CloseWrite()
	f.held(1)
	f.pod(listen(t, func(conn *net.TCPConn) {
		got, _ := io.ReadAll(conn)
		_, _ = io.WriteString(conn, "you said "+string(got))
	}))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "you said first second" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPodFinishesFirst(t *testing.T) {
	f := newFixture(t, "", nil)
	podGot := make(chan string, 1)
	f.pod(listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "all of it")
		_ = conn.CloseWrite()
		got, _ := io.ReadAll(conn)
		podGot <- string(got)
	}))
	conn := f.client()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "all of it" {
		t.Fatalf("got %q, %v", got, err)
	}
	_, _ = io.WriteString(conn, "thanks")
	conn.Close()
	if got := <-podGot; got != "thanks" {
		t.Errorf("the pod got %q", got)
	}
}

func TestLargeTransferBothWays(t *testing.T) {
	f := newFixture(t, "", nil)
	f.pod(listen(t, func(conn *net.TCPConn) {
		_, _ = io.Copy(conn, conn)
		_ = conn.CloseWrite()
	}))
	conn := f.client()
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
}

func TestClientGoneFreesItsPlace(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close without a word": func(conn *net.TCPConn) { conn.Close() },
		"reset": func(conn *net.TCPConn) {
			_, _ = io.WriteString(conn, "hello")
			_ = conn.SetLinger(0)
			conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "", nil)
			conn := f.client()
			f.held(1)
			leave(conn)
			f.held(0)
			if record := <-f.records; record.Outcome != accesslog.ClientGone {
				t.Errorf("the outcome is %s", record.Outcome)
			}
		})
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
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "", test.change)
			// The reset may be faster than the client.
			conn, err := net.Dial("tcp", f.address)
			if err == nil {
				defer conn.Close()
				_, err = conn.Read(make([]byte, 1))
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %v, want a reset", err)
			}
			if record := <-f.records; record.Reason != test.reason {
				t.Errorf("the reason is %q", record.Reason)
			}
		})
	}
}

func TestResetIsPassedOn(t *testing.T) {
	f := newFixture(t, "", nil)
	f.pod(listen(t, func(conn *net.TCPConn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.SetLinger(0)
	}))
	conn := f.client()
	_, _ = io.WriteString(conn, "x")
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a pod that is gone", n)
	}
}

// A client that was silent until it was connected, and then speaks first what
// others understand better, is handed back, and its words with it.
func TestForeignWordsAreHandedBack(t *testing.T) {
	f := newFixture(t, "", nil)
	podGot := make(chan string, 1)
	f.pod(listen(t, func(conn *net.TCPConn) {
		got, _ := io.ReadAll(conn)
		podGot <- string(got)
	}))
	conn := f.client()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n")
	if got := <-f.handedBack; got != "GET / HTTP/1.1\r\n" {
		t.Errorf("%q is handed back", got)
	}
	if got := <-podGot; got != "" {
		t.Errorf("the pod got %q", got)
	}
	if got := f.service.Queue().InFlight(); got != 0 {
		t.Errorf("%d are in flight", got)
	}
}

// TestForeignWordsAreHandedBackWhileHeld does not wait for a pod to find out what
// a client speaks that was silent at first.
func TestForeignWordsAreHandedBackWhileHeld(t *testing.T) {
	f := newFixture(t, "", nil)
	conn := f.client()
	f.held(1)
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n")
	if got := <-f.handedBack; got != "GET / HTTP/1.1\r\n" {
		t.Errorf("%q is handed back", got)
	}
	if got := f.service.Queue().Held(); got != 0 {
		t.Errorf("%d are held", got)
	}
}

func TestWordsThatAreNotForeignWaitForThePod(t *testing.T) {
	f := newFixture(t, "", nil)
	conn := f.client()
	f.held(1)
	_, _ = io.WriteString(conn, "\x00words")
	f.held(1)
	f.pod(listen(t, func(conn *net.TCPConn) {
		_, _ = io.Copy(conn, conn)
		_ = conn.CloseWrite()
	}))
	if _, err := io.WriteString(conn, " and more"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "\x00words and more" {
		t.Errorf("read %q, %v", got, err)
	}
}
