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

package sleep

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// maxAnswers bounds how many answers are kept. The least recently used go first.
	maxAnswers = 20000
	// maxAskedAtOnce is how many questions one server is asked at a time, so
	// that one that hangs holds up no more than that many workers.
	maxAskedAtOnce = 8
	// maxFaults is how many times in a row a server may fail before it is left
	// alone: a question that is too much for a server says nothing of the
	// others that it answers.
	maxFaults = 3
	// faultPause is how long a server that fails is left alone. One question
	// at a time finds out whether it is back.
	faultPause = 10 * time.Second
	// maxFaultyServers bounds how many servers are known to fail.
	maxFaultyServers = 1024
	// askTimeout is how long a server may take to answer, unless configured.
	askTimeout = 10 * time.Second
)

// question is something that a server is asked. Equal questions have equal
// answers.
type question struct {
	server string
	text   string
}

// answer is what came of a question.
type answer struct {
	value float64
	err   error
	asked time.Time
}

// faults is what is known of a server that fails.
type faults struct {
	count int
	until time.Time
	err   error
}

// questions asks each question once, whoever wants to know, and asks no server
// too much. Nobody waits for another one's question: who comes in the meantime
// gets ErrBusy. Safe for concurrent use.
type questions struct {
	clock   clock.PassiveClock
	timeout time.Duration
	answers *lru.Cache // of answer by question

	mu      sync.Mutex
	asking  map[question]struct{}
	load    map[string]int
	failing *lru.Cache // of faults by server
}

func newQuestions(clock clock.PassiveClock, timeout time.Duration) *questions {
	if timeout == 0 {
		timeout = askTimeout
	}
	return &questions{
		clock:   clock,
		timeout: timeout,
		answers: lru.New(maxAnswers),
		asking:  map[question]struct{}{},
		load:    map[string]int{},
		failing: lru.New(maxFaultyServers),
	}
}

// ask returns an answer that is at most maxAge old. The error is ErrBusy, or an
// *answerError if put returns none other.
func (q *questions) ask(ctx context.Context, asked question, maxAge time.Duration, put func(context.Context) (float64, error)) (float64, error) {
	if known, ok := q.answers.Get(asked); ok && q.clock.Since(known.(answer).asked) < maxAge {
		return known.(answer).value, known.(answer).err
	}
	if err := q.begin(asked); err != nil {
		return 0, err
	}
	now := answer{asked: q.clock.Now()}
	askCtx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	now.value, now.err = put(askCtx)
	if ctx.Err() != nil {
		// The one who asks has gone, which says nothing of the server.
		q.end(asked, nil)
		return 0, ctx.Err()
	}
	q.answers.Add(asked, now)
	q.end(asked, &now)
	return now.value, now.err
}

// begin takes a place at the server.
func (q *questions) begin(asked question) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := maxAskedAtOnce
	if known, ok := q.failing.Get(asked.server); ok && known.(faults).count >= maxFaults {
		if limit = 1; q.clock.Now().Before(known.(faults).until) || q.load[asked.server] >= limit {
			return known.(faults).err
		}
	}
	if _, busy := q.asking[asked]; busy || q.load[asked.server] >= limit {
		return ErrBusy
	}
	q.asking[asked] = struct{}{}
	q.load[asked.server]++
	return nil
}

// end gives the place back. Without an answer nothing is known of the server.
func (q *questions) end(asked question, got *answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.asking, asked)
	if q.load[asked.server]--; q.load[asked.server] == 0 {
		delete(q.load, asked.server)
	}
	var problem *answerError
	switch {
	case got == nil:
	case errors.As(got.err, &problem) && problem.serverFault:
		failed := faults{count: 1, until: q.clock.Now().Add(faultPause), err: got.err}
		if known, ok := q.failing.Get(asked.server); ok {
			failed.count += known.(faults).count
		}
		q.failing.Add(asked.server, failed)
	default:
		q.failing.Remove(asked.server)
	}
}
