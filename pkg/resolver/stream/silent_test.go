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
	"io"
	"net"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
)

// unused fails the test when anything counts or ever counted as use of the
// target.
func (f *fixture) unused() {
	f.t.Helper()
	if traffic := f.Service.Traffic(); traffic.Open() != 0 || traffic.Ended() {
		f.t.Errorf("%d connections count as use of the target, or one did", traffic.Open())
	}
}

// A health check that connects, waits for a moment and closes.
func TestConnectionThatEndsWithoutAByteWakesNothing(t *testing.T) {
	for name, end := range map[string]func(*net.TCPConn){
		"closed": func(conn *net.TCPConn) { conn.Close() },
		"reset":  reset,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{greeting: time.Hour})
			conn := f.Client()
			f.silent(1, 0)
			end(conn)
			if record := f.Record(1); record.Outcome != accesslog.Silent || record.Held {
				t.Errorf("the record is %+v", record)
			}
			f.silent(0, 0)
			f.unused()
			if got := f.Budget.Used(); got != 0 {
				t.Errorf("%d bytes are still counted", got)
			}
		})
	}
}

// Nor does it count as use of an awake target.
func TestConnectionThatEndsWithoutAByteIsNoUse(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour})
	f.Pods(resolvertest.Listen(t, echo))
	conn := f.Client()
	f.silent(0, 1)
	f.unused()
	conn.Close()
	if record := f.Record(1); record.Outcome != accesslog.Silent {
		t.Errorf("the record is %+v", record)
	}
	f.unused()
}

func TestClientThatWaitsForAGreetingWakesTheTarget(t *testing.T) {
	for name, test := range map[string]tuning{
		"after a while":                   {greeting: time.Millisecond},
		"at once where the server greets": {greeting: time.Hour, greets: sniff.ServerGreets},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test)
			conn := f.Client()
			f.Held(1)
			f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
				_, _ = io.WriteString(conn, "220 ready")
				_, _ = io.Copy(io.Discard, conn)
			}))
			expect(t, conn, "220 ready")
			f.InFlight(1)
			if open := f.Service.Traffic().Open(); open != 1 {
				t.Errorf("%d connections count as use", open)
			}
		})
	}
}

// A silent client of a protocol in which the client speaks first does not need a pod.
func TestSilentClientThatSpeaksFirstWakesNothing(t *testing.T) {
	f := newFixture(t, tuning{greets: sniff.ClientGreets})
	conn := f.Client()
	f.silent(1, 0)
	f.unused()
	send(t, conn, "SELECT")
	f.Held(1)
	f.Pods(resolvertest.Listen(t, echo))
	expect(t, conn, "SELECT")
}

// A silent client that woke the target does not keep it awake when the pod sends nothing
// either.
func TestSilenceAfterTheWakeIsNoUse(t *testing.T) {
	f := newFixture(t, tuning{})
	conn := f.Client()
	f.Held(1)
	f.Pods(resolvertest.Listen(t, echo))
	f.silent(0, 1)
	f.InFlight(0)
	resolvertest.Eventually(t, func() bool { return f.Service.Traffic().Open() == 0 })
	// The connection counts as use again when a byte is sent.
	send(t, conn, "hello")
	expect(t, conn, "hello")
	f.InFlight(1)
	if open := f.Service.Traffic().Open(); open != 1 {
		t.Errorf("%d connections count as use", open)
	}
}

func TestSilentConnectionTakesNoPlaceOfThePod(t *testing.T) {
	f := newFixture(t, tuning{change: func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 }})
	f.Pods(resolvertest.Listen(t, echo))
	silent := f.Client()
	f.silent(0, 1)
	busy := f.Client()
	send(t, busy, "hello")
	expect(t, busy, "hello")
	f.InFlight(1)
	// Once the client speaks it waits for a pod below its limit.
	send(t, silent, "me too")
	f.Held(1)
	busy.Close()
	expect(t, silent, "me too")
	f.InFlight(1)
}

// Silent connections to a pod have the same limit as others.
func TestSilentConnectionsToAPodAreBounded(t *testing.T) {
	f := newFixture(t, tuning{greeting: time.Hour, change: func(c *service.Config) { c.Limits.MaxConcurrencyPerPod = 1 }})
	f.Pods(resolvertest.Listen(t, echo))
	first := f.Client()
	f.silent(0, 1)
	second := f.Client()
	f.silent(1, 1)
	first.Close()
	f.silent(0, 1)
	send(t, second, "hello")
	expect(t, second, "hello")
}
