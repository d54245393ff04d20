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
//
// It knows nothing of what a query says. Begin with Limiter.
package queries

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// maxResults bounds how many results are cached. The least recently used are
	// evicted.
	maxResults = 20000
	// serverCapacity is how many queries one server gets at a time from all
	// namespaces together, and serverReserve how many of them are for namespaces
	// that have none at it.
	serverCapacity = 20
	serverReserve  = 4
	// MaxInFlight is how many queries one namespace has in flight at a server while no
	// other namespace has any there: half of what is not reserved.
	MaxInFlight = (serverCapacity - serverReserve) / 2
	// DefaultCapacity is how many queries are in flight together, to all servers. One
	// in reservedPart of them is reserved for namespaces that have none in flight. A
	// single namespace has at most a third of the rest.
	DefaultCapacity = 64
	reservedPart    = 4
	// MaxFailures is how many failures in a row open the circuit breaker of a server. A
	// single query that is too expensive for a server says nothing about others.
	MaxFailures = 3
	// An open circuit breaker rejects queries for 10 s, and for 20, 40 and 60 s when
	// the single query after a pause, which probes the server, has failed too.
	firstFailurePause = 10 * time.Second
	lastFailurePause  = time.Minute
	// maxBreakers bounds how many circuit breakers are kept.
	maxBreakers = 4096
	// defaultTimeout is how long a server may take to respond, unless
	// configured.
	defaultTimeout = 10 * time.Second
)

// ErrBusy means that there are enough queries in flight, or that the same query
// is in flight already: try again a little later.
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

// Query is a query of a server. Equal queries have equal results.
type Query struct {
	// Namespace is that of the ElastiService. Namespaces share no results, and
	// none waits for what another one has in flight.
	Namespace string
	// Server is the host and port of the server.
	Server string
	// Connection identifies how the server is queried: path, headers and
	// credentials.
	Connection string
	Text       string
}

// Result is the result of a query.
type Result struct {
	Value float64
	// Note is a remark of the server on the query. Empty if there is none.
	Note string
}

// digest is a key for texts of any size.
type digest [sha256.Size]byte

func digestOf(texts ...string) digest {
	var all strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&all, "%d %s\n", len(text), text)
	}
	return sha256.Sum256([]byte(all.String()))
}

// queryResult is the result of a query, or its error, and when it was sent.
type queryResult struct {
	result Result
	err    error
	at     time.Time
}

// circuitBreaker is the state of a server that fails.
type circuitBreaker struct {
	// failures is how many times in a row it has failed, err its last error.
	failures int
	err      error
	// No query is sent before until, which is a pause after the last failure.
	until time.Time
	pause time.Duration
}

func (b circuitBreaker) open() bool { return b.failures >= MaxFailures }

// failed returns the circuit breaker after another failure.
func (b circuitBreaker) failed(now time.Time, err error) circuitBreaker {
	b.failures, b.err = b.failures+1, err
	switch {
	case b.failures == MaxFailures:
		b.pause = firstFailurePause
	case b.open() && !now.Before(b.until):
		b.pause = min(2*b.pause, lastFailurePause)
	default:
		// A query that was in flight when it opened does not extend the pause.
		return b
	}
	b.until = now.Add(b.pause)
	return b
}

// share is a server, or everything, as one namespace uses it.
type share struct {
	namespace string
	// server is empty for everything.
	server string
}

// Limiter sends each query of a namespace once for all triggers that need it,
// and bounds how many are in flight, to a server and altogether. A namespace gets at
// most as many as are left to the others, so that there is room for the first query
// of any other, however many servers hang. No caller waits for the query of another:
// it gets ErrBusy meanwhile. It is safe for concurrent use.
type Limiter struct {
	clock    clock.PassiveClock
	timeout  time.Duration
	capacity int
	results  *lru.Cache // of queryResult by digest

	mu sync.Mutex
	// inFlight are the queries in flight. connections counts them by server and
	// Query.Connection.
	inFlight    map[digest]struct{}
	connections map[digest]int
	// servers and shares count the same by server, and by namespace.
	servers  map[string]int
	shares   map[share]int
	breakers *lru.Cache // of circuitBreaker by digest
}

// Options configure a Limiter.
type Options struct {
	// Clock is the time. Defaults to the real clock.
	Clock clock.PassiveClock
	// Timeout is how long a query may take. Defaults to 10 s.
	Timeout time.Duration
	// Capacity is how many queries may be in flight together. Defaults to
	// DefaultCapacity.
	Capacity int
}

// NewLimiter returns a limiter without any query in flight.
func NewLimiter(options Options) *Limiter {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Timeout == 0 {
		options.Timeout = defaultTimeout
	}
	if options.Capacity == 0 {
		options.Capacity = DefaultCapacity
	}
	return &Limiter{
		clock:       options.Clock,
		timeout:     options.Timeout,
		capacity:    options.Capacity,
		results:     lru.New(maxResults),
		inFlight:    map[digest]struct{}{},
		connections: map[digest]int{},
		servers:     map[string]int{},
		shares:      map[share]int{},
		breakers:    lru.New(maxBreakers),
	}
}

// Timeout returns how long a query may take.
func (l *Limiter) Timeout() time.Duration { return l.timeout }

// Do returns a result of the query that is at most maxAge old. It calls send
// when there is none. The error is ErrBusy, that of ctx, or one that send
// returned.
func (l *Limiter) Do(ctx context.Context, query Query, maxAge time.Duration, send func(context.Context) (Result, error)) (Result, error) {
	connection := digestOf(query.Namespace, query.Server, query.Connection)
	key := digestOf(query.Namespace, query.Server, query.Connection, query.Text)
	if known, ok := l.results.Get(key); ok && l.clock.Since(known.(queryResult).at) < maxAge {
		return known.(queryResult).result, known.(queryResult).err
	}
	if err := l.begin(query, key, connection); err != nil {
		return Result{}, err
	}
	sent := queryResult{at: l.clock.Now()}
	sendCtx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	sent.result, sent.err = send(sendCtx)
	if ctx.Err() != nil {
		// The caller has stopped: that is no failure of the server.
		l.end(query, key, connection, nil)
		return Result{}, ctx.Err()
	}
	l.results.Add(key, sent)
	l.end(query, key, connection, &sent)
	return sent.result, sent.err
}

// begin acquires a slot for a query.
func (l *Limiter) begin(query Query, key, connection digest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.breakers.Get(connection); ok && known.(circuitBreaker).open() {
		if l.clock.Now().Before(known.(circuitBreaker).until) || l.connections[connection] > 0 {
			return known.(circuitBreaker).err
		}
	}
	_, busy := l.inFlight[key]
	if busy || !l.hasRoom(query) {
		return ErrBusy
	}
	l.inFlight[key] = struct{}{}
	l.connections[connection]++
	l.servers[query.Server]++
	l.shares[share{query.Namespace, query.Server}]++
	l.shares[share{namespace: query.Namespace}]++
	return nil
}

// hasRoom reports whether there is a slot for a query. The first query of a namespace
// gets any slot, further ones only a slot that is not reserved. Of these, a namespace
// takes at most as many as it leaves to the others at a server, and half as many as it
// leaves to them of all servers together.
func (l *Limiter) hasRoom(query Query) bool {
	freeOfAll := l.capacity - len(l.inFlight)
	if own := l.shares[share{namespace: query.Namespace}]; own > 0 {
		freeOfAll -= l.capacity/reservedPart + 2*own
	}
	free := serverCapacity - l.servers[query.Server]
	if own := l.shares[share{query.Namespace, query.Server}]; own > 0 {
		free -= serverReserve + own
	}
	return freeOfAll > 0 && free > 0
}

// end releases the slot. A query without a result is not counted for the circuit breaker.
func (l *Limiter) end(query Query, key, connection digest, sent *queryResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inFlight, key)
	subtract(l.connections, connection)
	subtract(l.servers, query.Server)
	subtract(l.shares, share{query.Namespace, query.Server})
	subtract(l.shares, share{namespace: query.Namespace})
	var failed *Error
	switch {
	case sent == nil:
	case errors.As(sent.err, &failed) && failed.ServerFault:
		var before circuitBreaker
		if known, ok := l.breakers.Get(connection); ok {
			before = known.(circuitBreaker)
		}
		l.breakers.Add(connection, before.failed(l.clock.Now(), sent.err))
	default:
		l.breakers.Remove(connection)
	}
}

// subtract decrements a count, and deletes it at zero.
func subtract[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}
