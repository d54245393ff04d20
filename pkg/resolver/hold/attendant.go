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

package hold

import "context"

// WakeAnswered tells that a wake call was answered.
func (q *Queue) WakeAnswered() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cold.WakeAnswered.IsZero() {
		q.cold.WakeAnswered = q.now()
	}
}

// ColdStart returns the times of the current or latest cold start.
func (q *Queue) ColdStart() ColdStart {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cold
}

// Nudge asks for pods without holding anything, until the function that it
// returns is called.
func (q *Queue) Nudge() (stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.nudges++
	if q.held == 0 && q.nudges == 1 && !q.pods.AnyAnswering() {
		q.cold = ColdStart{Began: q.now()}
	}
	q.summon()
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.nudges--
		q.summon()
	}
}

// summon starts the attendant when it is needed, and tells it to end when it is
// not. Callers hold mu.
func (q *Queue) summon() {
	needed := !q.closed && (q.held > 0 || q.nudges > 0)
	switch {
	case needed && q.attendant == nil:
		ctx, cancel := context.WithCancel(context.Background())
		q.attendant = cancel
		q.attending.Go(func() { q.runAttendant(ctx) })
	case !needed && q.attendant != nil:
		q.attendant()
	}
}

func (q *Queue) runAttendant(ctx context.Context) {
	q.attend(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.attendant()
	q.attendant = nil
	// Something may have been held between the end of ctx and now.
	q.summon()
}

// Close ends the wait of everything that is held with ErrClosed, lets nothing
// more in, and returns when the attendant has ended. Leases stay valid.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	for _, line := range q.lines {
		for element := line.Front(); element != nil; element = line.Front() {
			w := element.Value.(*Waiter)
			q.remove(w)
			w.err = ErrClosed
			w.Settle()
		}
	}
	q.summon()
	q.mu.Unlock()
	q.attending.Wait()
}
