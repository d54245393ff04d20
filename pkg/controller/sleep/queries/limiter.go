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

// Package queries limits and deduplicates the queries that triggers send to
// servers.
package queries

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// maxResults bounds how many results are kept. The least recently used go
	// first.
	maxResults = 20000
	// MaxInFlight is how many queries one server gets at a time, so that one
	// that hangs blocks no more than that many workers.
	MaxInFlight = 8
	// MaxFaults is how many times in a row a server may fail before its circuit
	// breaker opens: a single query that is too expensive for a server says
	// nothing about other queries.
	MaxFaults = 3
	// faultPause is how long an open circuit breaker lets no query through.
	// After it, one query at a time finds out whether the server is back.
	faultPause = 10 * time.Second
	// maxBreakers bounds how many circuit breakers are kept.
	maxBreakers = 1024
	// defaultTimeout is how long a server may take to respond, unless
	// configured.
	defaultTimeout = 10 * time.Second
)

// ErrBusy means that the server has enough queries in flight, or that the same
// query is in flight already: try again a little later.
var ErrBusy = errors.New("busy, try again later")

// Error says why a query has no result.
type Error struct {
	// Reason is a reason of the condition TriggersHealthy.
	Reason string
	// Message is a sentence for the user, without any secret.
	Message string
	// ServerFault is true when any other query to the server would have failed
	// as well.
	ServerFault bool
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Query is something that a server is asked. Equal queries have equal results.
type Query struct {
	Server string
	Text   string
}

// result is the result of a query.
type result struct {
	value float64
	err   error
	at    time.Time
}

// circuitBreaker is what is known of a server that fails.
type circuitBreaker struct {
	faults int
	until  time.Time
	err    error
}

// Limiter sends each query once for all triggers that need it, and no server
// too many. No caller waits for another one's query: it gets ErrBusy in the
// meantime. It is safe for concurrent use.
type Limiter struct {
	clock   clock.PassiveClock
	timeout time.Duration
	results *lru.Cache // of result by Query

	mu       sync.Mutex
	inFlight map[Query]struct{}
	load     map[string]int
	breakers *lru.Cache // of circuitBreaker by server
}

// NewLimiter returns a limiter whose queries take no longer than a timeout,
// 10 s if that is zero.
func NewLimiter(clock clock.PassiveClock, timeout time.Duration) *Limiter {
	if timeout == 0 {
		timeout = defaultTimeout
	}
	return &Limiter{
		clock:    clock,
		timeout:  timeout,
		results:  lru.New(maxResults),
		inFlight: map[Query]struct{}{},
		load:     map[string]int{},
		breakers: lru.New(maxBreakers),
	}
}

// Timeout returns how long a query may take.
func (l *Limiter) Timeout() time.Duration { return l.timeout }

// Do returns a result of the query that is at most maxAge old. It calls send
// when there is none. The error is ErrBusy, that of ctx, or one that send
// returned.
func (l *Limiter) Do(ctx context.Context, query Query, maxAge time.Duration, send func(context.Context) (float64, error)) (float64, error) {
	if known, ok := l.results.Get(query); ok && l.clock.Since(known.(result).at) < maxAge {
		return known.(result).value, known.(result).err
	}
	if err := l.begin(query); err != nil {
		return 0, err
	}
	sent := result{at: l.clock.Now()}
	sendCtx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	sent.value, sent.err = send(sendCtx)
	if ctx.Err() != nil {
		// The caller has stopped, which says nothing about the server.
		l.end(query, nil)
		return 0, ctx.Err()
	}
	l.results.Add(query, sent)
	l.end(query, &sent)
	return sent.value, sent.err
}

// begin takes a place at the server.
func (l *Limiter) begin(query Query) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := MaxInFlight
	if known, ok := l.breakers.Get(query.Server); ok && known.(circuitBreaker).faults >= MaxFaults {
		if limit = 1; l.clock.Now().Before(known.(circuitBreaker).until) || l.load[query.Server] >= limit {
			return known.(circuitBreaker).err
		}
	}
	if _, busy := l.inFlight[query]; busy || l.load[query.Server] >= limit {
		return ErrBusy
	}
	l.inFlight[query] = struct{}{}
	l.load[query.Server]++
	return nil
}

// end gives the place back. Without a result nothing is known of the server.
func (l *Limiter) end(query Query, sent *result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inFlight, query)
	if l.load[query.Server]--; l.load[query.Server] == 0 {
		delete(l.load, query.Server)
	}
	var failed *Error
	switch {
	case sent == nil:
	case errors.As(sent.err, &failed) && failed.ServerFault:
		breaker := circuitBreaker{faults: 1, until: l.clock.Now().Add(faultPause), err: sent.err}
		if known, ok := l.breakers.Get(query.Server); ok {
			breaker.faults += known.(circuitBreaker).faults
		}
		l.breakers.Add(query.Server, breaker)
	default:
		l.breakers.Remove(query.Server)
	}
}
