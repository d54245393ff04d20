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
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
)

// used waits until so many connections use the target.
func (f *fixture) used(n int) {
	f.t.Helper()
	f.InFlight(n)
	resolvertest.Eventually(f.t, func() bool { return f.Service.Traffic().Open() == int64(n) })
}

// finish ends the client's side of a connection, as nc -N does at the end of its
// input.
func finish(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// slowServer is a pod that reads until the client has closed its writing side, and then
// sends each text that it gets from words, until those end.
func slowServer(t *testing.T, words <-chan string) string {
	t.Helper()
	return resolvertest.Listen(t, func(conn *net.TCPConn) {
		_, _ = io.Copy(io.Discard, conn)
		for {
			select {
			case word, ok := <-words:
				if !ok {
					return
				}
				_, _ = io.WriteString(conn, word)
			case <-t.Context().Done():
				return
			}
		}
	})
}

// A client that closes its writing side without having sent anything may wait for the
// server. The connection counts as use from the first byte of the server on.
func TestFinishedClientUsesAnAwakeTargetOnceTheServerSpeaks(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	words := make(chan string)
	f.Pods(slowServer(t, words))
	conn := f.Client()
	finish(t, conn)
	f.silent(0, 1)
	f.unused()
	words <- "Sun Nov 29 "
	expect(t, conn, "Sun Nov 29 ")
	f.used(1)
	words <- "11:36"
	expect(t, conn, "11:36")
	close(words)
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("then it got %q and %v", rest, err)
	}
	if record := f.Record(1); record.Outcome != accesslog.Forwarded || record.BytesOut != int64(len("Sun Nov 29 11:36")) || record.BytesIn != 0 {
		t.Errorf("the record is %+v", record)
	}
	f.used(0)
}

// When the server sends nothing either, the connection does not count as use.
func TestFinishedClientOfASilentServerIsNoUse(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	words := make(chan string)
	f.Pods(slowServer(t, words))
	conn := f.Client()
	finish(t, conn)
	f.silent(0, 1)
	close(words)
	if got, err := io.ReadAll(conn); err != nil || len(got) > 0 {
		t.Errorf("the client got %q and %v", got, err)
	}
	if record := f.Record(1); record.Outcome != accesslog.Silent {
		t.Errorf("the record is %+v", record)
	}
	f.unused()
}

// At zero, a client that waits for the server cannot be distinguished from a health check
// that has ended. Neither wakes the target before the greeting timeout, except on a port
// of a protocol in which the server speaks first.
func TestFinishedClientWakesNothingBeforeTheGraceIsOver(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	conn := f.Client()
	f.silent(1, 0)
	finish(t, conn)
	resolvertest.AwaitReset(t, conn)
	if record := f.Record(1); record.Outcome != accesslog.Silent || record.Held {
		t.Errorf("the record is %+v", record)
	}
	f.unused()
}

// A client that has woken the target and then closes its writing side still gets the
// greeting.
func TestFinishedClientThatWokeTheTargetGetsTheGreeting(t *testing.T) {
	for name, test := range map[string]struct {
		tuning
		first bool
	}{
		"after a while":                           {tuning{greeting: time.Millisecond}, false},
		"at once where the server greets":         {tuning{greeting: time.Hour, greets: sniff.ServerGreets}, false},
		"finished first, where the server greets": {tuning{greeting: time.Hour, greets: sniff.ServerGreets}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.tuning)
			conn := f.Client()
			if !test.first {
				f.Held(1)
			}
			finish(t, conn)
			f.Held(1)
			words := make(chan string, 1)
			words <- "220 ready"
			close(words)
			f.Pods(slowServer(t, words))
			if got, err := io.ReadAll(conn); err != nil || string(got) != "220 ready" {
				t.Errorf("read %q, %v", got, err)
			}
			if record := f.Record(1); record.Outcome != accesslog.Forwarded || !record.Held {
				t.Errorf("the record is %+v", record)
			}
		})
	}
}

// The place of a client is free once it has closed the whole connection.
func TestFinishedClientThatClosesFreesItsPlace(t *testing.T) {
	f := newFixture(t, tuning{})
	conn := f.Client()
	f.Held(1)
	finish(t, conn)
	reset(conn)
	f.Held(0)
	if record := f.Record(1); record.Outcome != accesslog.ClientGone {
		t.Errorf("the record is %+v", record)
	}
	f.used(0)
}

// A half-closed connection does not keep the target awake while the server sends nothing.
func TestFinishedClientDoesNotKeepASilentServerAwake(t *testing.T) {
	f := newFixture(t, tuning{})
	conn := f.Client()
	f.Held(1)
	finish(t, conn)
	words := make(chan string)
	f.Pods(slowServer(t, words))
	f.silent(0, 1)
	f.used(0)
	words <- "at last"
	expect(t, conn, "at last")
	f.used(1)
	close(words)
	f.used(0)
}

// The client may still send something to a server that has closed its writing side.
func TestFinishedServerIsUsedOnceTheClientSpeaks(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	got := make(chan string, 1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_ = conn.CloseWrite()
		all, _ := io.ReadAll(conn)
		got <- string(all)
	}))
	conn := f.Client()
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Fatalf("the client got %q and %v", rest, err)
	}
	f.silent(0, 1)
	f.unused()
	send(t, conn, "log line\n")
	f.used(1)
	send(t, conn, "another\n")
	conn.Close()
	if all := <-got; all != "log line\nanother\n" {
		t.Errorf("the server got %q", all)
	}
	if record := f.Record(1); record.Outcome != accesslog.Forwarded || record.BytesIn != int64(len("log line\nanother\n")) {
		t.Errorf("the record is %+v", record)
	}
	f.used(0)
}

// A reset of a silent connection is passed on, and does not count as use.
func TestResetWithoutAWordIsPassedOn(t *testing.T) {
	for name, finished := range map[string]bool{"both are silent": false, "the server has finished": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{greeting: time.Hour})
			ended := make(chan error, 1)
			f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
				if finished {
					_ = conn.CloseWrite()
				}
				_, err := io.ReadAll(conn)
				ended <- err
			}))
			conn := f.Client()
			if finished {
				if _, err := io.ReadAll(conn); err != nil {
					t.Fatal(err)
				}
			}
			f.silent(0, 1)
			reset(conn)
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server gets %v, want a reset", err)
			}
			f.silent(0, 0)
			f.unused()
		})
	}
}

// A reset by the server is passed on as well.
func TestResetOfASilentServerIsPassedOn(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	accepted, leave := make(chan struct{}, 1), make(chan struct{})
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		select {
		case accepted <- struct{}{}:
		default:
		}
		<-leave
		reset(conn)
	}))
	conn := f.Client()
	f.silent(0, 1)
	// A reset before that would be a dial that failed.
	<-accepted
	close(leave)
	resolvertest.AwaitReset(t, conn)
	if record := f.Record(1); record.Outcome != accesslog.Failed {
		t.Errorf("the record is %+v", record)
	}
	f.unused()
}
