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

package queries

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const testInterval = 30 * time.Second

// hung is the error of a server that does not respond.
var hung = &Error{Reason: "ServerFailed", Message: "did not respond in time", ServerFault: true}

// one is the result of servers that respond.
var one = Result{Value: 1}

func responds(context.Context) (Result, error) { return one, nil }

// hang responds when it is closed, and otherwise fails when its context ends.
type hang chan struct{}

func (h hang) send(ctx context.Context) (Result, error) {
	select {
	case <-h:
		return one, nil
	case <-ctx.Done():
		return Result{}, hung
	}
}

func TestEqualQueriesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		query := Query{Server: "prometheus", Text: "up"}
		server := hang(make(chan struct{}))
		count := 0
		do := func() (Result, error) {
			return limiter.Do(t.Context(), query, testInterval, func(ctx context.Context) (Result, error) {
				count++
				return server.send(ctx)
			})
		}
		done := make(chan error)
		go func() { _, err := do(); done <- err }()
		synctest.Wait()
		if _, err := do(); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v while the query is in flight, want %v", err, ErrBusy)
		}
		close(server)
		if err := <-done; err != nil {
			t.Error(err)
		}
		for range 10 {
			if value, err := do(); value != one || err != nil {
				t.Errorf("got %v, %v, want the cached result", value, err)
			}
		}
		if count != 1 {
			t.Errorf("queried %d times, want once", count)
		}
		<-time.After(testInterval)
		if _, err := do(); err != nil || count != 2 {
			t.Errorf("queried %d times (%v), want again after the interval", count, err)
		}
	})
}

// A server that hangs gets a few queries at a time, then none for a while, and
// other servers get theirs all along.
func TestAServerThatHangsDelaysOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		var sent atomic.Int32
		busy := 0
		done := make(chan error)
		doAll := func(count int, send func(context.Context) (Result, error)) {
			for i := range count {
				go func() {
					_, err := limiter.Do(t.Context(), Query{Server: "hangs", Text: fmt.Sprint(i)}, 0, send)
					done <- err
				}()
			}
		}
		doAll(100, func(ctx context.Context) (Result, error) {
			sent.Add(1)
			<-ctx.Done()
			return Result{}, hung
		})
		for range 100 - MaxInFlight {
			if err := <-done; errors.Is(err, ErrBusy) {
				busy++
			}
		}
		if sent.Load() != MaxInFlight || busy != 100-MaxInFlight {
			t.Errorf("%d queries are sent at once and %d rejected, want %d and the others", sent.Load(), busy, MaxInFlight)
		}
		started := time.Now()
		if _, err := limiter.Do(t.Context(), Query{Server: "responds", Text: "up"}, 0, responds); err != nil || time.Since(started) != 0 {
			t.Errorf("another server responds after %s with %v, want at once", time.Since(started), err)
		}
		for range MaxInFlight {
			<-done
		}

		var problem *Error
		started = time.Now()
		if _, err := limiter.Do(t.Context(), Query{Server: "hangs", Text: "more"}, 0, nil); !errors.As(err, &problem) || time.Since(started) != 0 {
			t.Errorf("got %v after %s, want the failure at once", err, time.Since(started))
		}
		<-time.After(firstFailurePause)
		server := hang(make(chan struct{}))
		doAll(2, server.send)
		if err := <-done; !errors.As(err, &problem) {
			t.Errorf("got %v, want the failure for all but the query that probes", err)
		}
		close(server)
		if err := <-done; err != nil {
			t.Errorf("got %v from the server that is back", err)
		}
		if _, err := limiter.Do(t.Context(), Query{Server: "hangs", Text: "more"}, 0, server.send); err != nil {
			t.Errorf("got %v from the server that is back", err)
		}
	})
}

// A query that is too expensive for a server says nothing about others.
func TestAQueryThatHangsDoesNotOpenTheCircuitBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		for i := range 10 {
			if _, err := limiter.Do(t.Context(), Query{Server: "slow", Text: "expensive"}, 0, hang(nil).send); errors.Is(err, ErrBusy) {
				t.Error(err)
			}
			value, err := limiter.Do(t.Context(), Query{Server: "slow", Text: fmt.Sprint(i)}, 0, responds)
			if value != one || err != nil {
				t.Fatalf("got %v, %v after %d queries that hung", value, err, i+1)
			}
		}
	})
}

// sendHanging sends queries of a namespace that end with the context of the test, one
// for each server, and returns how many are in flight.
func sendHanging(t *testing.T, limiter *Limiter, namespace string, count int, server func(int) string) int {
	t.Helper()
	var inFlight atomic.Int32
	for i := range count {
		query := Query{Namespace: namespace, Server: server(i), Connection: fmt.Sprint(i), Text: "hangs"}
		go func() {
			_, _ = limiter.Do(t.Context(), query, 0, func(ctx context.Context) (Result, error) {
				inFlight.Add(1)
				<-ctx.Done()
				return Result{}, hung
			})
		}()
	}
	synctest.Wait()
	return int(inFlight.Load())
}

// 64 ElastiServices with 16 triggers each, all at servers that hang, leave room
// for the queries of any other namespace, at the same server too.
func TestServersThatHangOfOneNamespaceDelayNoOther(t *testing.T) {
	for name, server := range map[string]func(int) string{
		"one server":   func(int) string { return "shared" },
		"many servers": func(i int) string { return fmt.Sprint(i) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := NewLimiter(Options{})
				count := sendHanging(t, limiter, "loud", 64*16, server)
				if count == 0 || count > DefaultCapacity/2 {
					t.Errorf("%d queries of one namespace are in flight", count)
				}
				for i := range 100 {
					started := time.Now()
					got, err := limiter.Do(t.Context(), Query{Namespace: "quiet", Server: "shared", Text: fmt.Sprint(i)}, 0, responds)
					if got != one || err != nil || time.Since(started) != 0 {
						t.Fatalf("another namespace got %v, %v after %s", got, err, time.Since(started))
					}
				}
			})
		})
	}
}

// The more namespaces have servers that hang, the fewer queries each gets.
func TestManyNamespacesWhoseServersHangLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		total := 0
		for i := range 20 {
			total += sendHanging(t, limiter, fmt.Sprintf("loud-%d", i), 100, func(j int) string { return fmt.Sprintf("%d-%d", i, j) })
		}
		if total >= DefaultCapacity {
			t.Errorf("all %d slots are taken", total)
		}
		if got, err := limiter.Do(t.Context(), Query{Namespace: "quiet", Server: "responds", Text: "up"}, 0, responds); got != one || err != nil {
			t.Errorf("another namespace got %v, %v", got, err)
		}
	})
}

// Likewise at one server, however many namespaces query it.
func TestManyNamespacesLeaveRoomAtAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		for i := range 3 {
			sendHanging(t, limiter, fmt.Sprintf("loud-%d", i), 100, func(int) string { return "shared" })
		}
		if got, err := limiter.Do(t.Context(), Query{Namespace: "quiet", Server: "shared", Text: "up"}, 0, responds); got != one || err != nil {
			t.Errorf("another namespace got %v, %v", got, err)
		}
	})
}

// A server that fails for one namespace may do so because of its queries.
func TestCircuitBreakerIsThatOfANamespace(t *testing.T) {
	limiter := NewLimiter(Options{})
	fails := func(context.Context) (Result, error) { return Result{}, hung }
	for i := range MaxFailures {
		if _, err := limiter.Do(t.Context(), Query{Namespace: "loud", Server: "shared", Text: fmt.Sprint(i)}, 0, fails); !errors.Is(err, hung) {
			t.Fatal(err)
		}
	}
	if _, err := limiter.Do(t.Context(), Query{Namespace: "loud", Server: "shared", Text: "up"}, 0, responds); !errors.Is(err, hung) {
		t.Errorf("got %v, want the failure", err)
	}
	if got, err := limiter.Do(t.Context(), Query{Namespace: "quiet", Server: "shared", Text: "up"}, 0, responds); got != one || err != nil {
		t.Errorf("another namespace got %v, %v", got, err)
	}
}

// The pauses of a server that keeps failing grow up to a minute.
func TestPausesOfACircuitBreakerGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(Options{})
		sent := 0
		do := func() {
			_, _ = limiter.Do(t.Context(), Query{Server: "failing", Text: "up"}, 0, func(context.Context) (Result, error) { sent++; return Result{}, hung })
		}
		for range MaxFailures {
			do()
		}
		for _, pause := range []time.Duration{firstFailurePause, 2 * firstFailurePause, 4 * firstFailurePause, lastFailurePause, lastFailurePause} {
			before := sent
			<-time.After(pause - time.Second)
			if do(); sent != before {
				t.Errorf("queried before a pause of %s is over", pause)
			}
			<-time.After(time.Second)
			if do(); sent != before+1 {
				t.Errorf("not queried after a pause of %s", pause)
			}
		}
	})
}

// Nothing is kept of queries that have ended but bounded results.
func TestLimiterForgetsWhatIsNotInFlight(t *testing.T) {
	limiter := NewLimiter(Options{})
	for i := range 100 {
		if _, err := limiter.Do(t.Context(), Query{Namespace: fmt.Sprint(i % 7), Server: fmt.Sprint(i), Text: "up"}, 0, responds); err != nil {
			t.Fatal(err)
		}
	}
	if kept := len(limiter.inFlight) + len(limiter.connections) + len(limiter.servers) + len(limiter.shares) + limiter.breakers.Len(); kept != 0 {
		t.Errorf("%d entries are kept", kept)
	}
}
