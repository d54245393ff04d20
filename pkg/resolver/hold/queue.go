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

// Package hold is where requests and connections wait for a pod.
//
// Each ElastiService has one Queue. Whoever has something to forward asks it
// for a Lease, the right to use one pod for one request or connection, and
// waits in line, first come first served for each port, when no pod can answer
// or all are as busy as they may be. What waits costs no goroutine of its own:
// the queue calls back when a waiter's turn has come.
package hold

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// Limits bound what one service holds and sends.
type Limits struct {
	// MaxPending is how many waiters there may be.
	MaxPending int
	// MaxConcurrencyPerPod is how much one pod may have in flight. 0: no limit.
	MaxConcurrencyPerPod int
}

// Options are what a Queue is made of.
type Options struct {
	// Limits are the first limits; SetLimits changes them.
	Limits Limits
	// Budget is shared by all queues of the process.
	Budget *memory.Budget
	// Dialer connects to the pods of leases. Optional.
	Dialer *dial.Dialer
	// Work runs in a goroutine of the queue whenever something is held, and
	// its context ends when nothing is held any more. It is never run twice at
	// a time. It does what makes pods appear and be found ready.
	Work func(ctx context.Context)
	// Tasks runs Work, so that a panic of it does not end the process. Optional.
	Tasks *task.Runner
	// Now returns the time. Defaults to time.Now.
	Now func() time.Time
}

// Queue holds the requests and connections of one service, and knows the pods
// they wait for. It is safe for concurrent use.
type Queue struct {
	// Immutable.
	account *memory.Account
	dialer  *dial.Dialer
	work    func(ctx context.Context)
	tasks   *task.Runner
	now     func() time.Time
	changed chan struct{}

	mu     sync.Mutex
	limits Limits
	pods   endpoint.Set
	lines  map[line]*list.List
	// silent is as lines, for those on which nothing was said.
	silent map[line]*list.List
	held   int
	// joined is how many waiters ever came.
	joined uint64
	closed bool
	// keepAwakes is how many callers want pods without holding anything.
	keepAwakes int
	// cold is the current or latest cold start.
	cold ColdStart
	// worker is set while a goroutine runs work.
	worker  context.CancelFunc
	working sync.WaitGroup
}

// line is which leases the waiters in a line wait for.
type line struct {
	port string
	// pod is nil where any will do.
	pod *endpoint.Pod
}

// New returns a queue. Close ends it.
func New(options Options) *Queue {
	if options.Now == nil {
		options.Now = time.Now
	}
	q := &Queue{
		dialer:  options.Dialer,
		work:    options.Work,
		tasks:   options.Tasks,
		now:     options.Now,
		changed: make(chan struct{}, 1),
		limits:  options.Limits,
		lines:   map[line]*list.List{},
		silent:  map[line]*list.List{},
	}
	q.account = options.Budget.Open(q.shed)
	return q
}

// Memory returns what counts the bytes that the service costs.
func (q *Queue) Memory() *memory.Account { return q.account }

// ColdStart is when the steps of a wake from zero were seen. A zero time means
// that a step was not seen.
type ColdStart struct {
	// Began is when the first request or connection was held.
	Began time.Time
	// WakeAnswered is when the first wake call after that was answered.
	WakeAnswered time.Time
	// EndpointReady is when a pod could answer first.
	EndpointReady time.Time
}

// Lease is the right to use one pod for one request or connection. It ends
// with exactly one call of Release or Refuse.
type Lease struct {
	// Pod is the pod, and Number the port to connect to.
	Pod    *endpoint.Pod
	Number uint16

	queue *Queue
	port  string
	// arrivals is how often pods had come when it was taken.
	arrivals uint64
	// silent is true while nothing was said on the connection.
	silent bool
}

// Addresses returns where to connect to, in order of preference.
func (l Lease) Addresses() []netip.AddrPort {
	addresses := make([]netip.AddrPort, len(l.Pod.Addresses))
	for i, address := range l.Pod.Addresses {
		addresses[i] = netip.AddrPortFrom(address, l.Number)
	}
	return addresses
}

// Dial connects to the pod. When it fails, nothing was sent. The lease goes on
// and is to be released when the error is a *localfault.Error or ctx has ended,
// which say nothing about the pod, and to be refused otherwise.
func (l Lease) Dial(ctx context.Context) (*net.TCPConn, error) {
	return l.queue.dialer.Pod(ctx, l.Addresses())
}

// Release ends the lease.
func (l Lease) Release() {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.giveBack()
	l.queue.dispatch()
}

// Refuse ends the lease and tells that the pod did not accept a connection:
// nothing more is sent to it until it does, or becomes ready anew.
func (l Lease) Refuse() {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.giveBack()
	l.queue.pods.Refused(l.Pod, l.port)
	l.queue.signal()
	l.queue.dispatch()
}

// giveBack counts one connection less for the pod. Callers hold mu.
func (l Lease) giveBack() {
	if l.silent {
		l.queue.pods.ReturnSilent(l.Pod)
		return
	}
	l.queue.pods.Return(l.Pod)
}

// Waiter is one request or connection that waits for its turn.
type Waiter struct {
	// Port is the name of the Service port.
	Port string
	// Pod is the pod that it has a connection to already, at Number, and waits to
	// send more to. Nil: any pod will do.
	Pod    *endpoint.Pod
	Number uint16
	// Bytes is how many bytes of memory the waiter keeps.
	Bytes int64
	// Silent is true for a connection on which nothing was said. It wakes nothing
	// and is not pending: it gets a silent lease when there is a pod anyway.
	Silent bool
	// Resolve is called once, from any goroutine, when the wait is over and
	// Result can be called. It is called with the queue locked: it must not
	// block or use the queue.
	Resolve func()

	// Owned by the queue.
	place *list.Element
	// number tells which of two waiters came later.
	number   uint64
	resolved bool
	lease    Lease
	cold     ColdStart
	err      error
}

// Result returns how the wait ended. It may be called after Resolve was, or
// after Leave returned false.
func (w *Waiter) Result() (Lease, ColdStart, error) {
	return w.lease, w.cold, w.err
}

// TryTake returns a lease when a pod can be used at once and nobody waits for
// the same port.
func (q *Queue) TryTake(port string) (Lease, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiters := q.lines[line{port: port}]; waiters != nil && waiters.Len() > 0 {
		return Lease{}, false
	}
	return q.take(port)
}

func (q *Queue) take(port string) (Lease, bool) {
	pod, number := q.pods.Take(port, q.limits.MaxConcurrencyPerPod)
	if pod == nil {
		return Lease{}, false
	}
	return q.lease(pod, number, port), true
}

func (q *Queue) lease(pod *endpoint.Pod, number uint16, port string) Lease {
	return Lease{Pod: pod, Number: number, queue: q, port: port, arrivals: q.pods.Arrivals()}
}

// Join puts a waiter at the end of the line. It fails with ErrTooManyPending,
// ErrClosed or an error of the memory package, and then Resolve is not called.
func (q *Queue) Join(w *Waiter) error {
	return q.join(w, false)
}

// Rejoin puts a waiter, whose lease came to nothing, at the front of the line.
// It fails as Join does, but never for the number of waiters.
func (q *Queue) Rejoin(w *Waiter) error {
	w.resolved, w.lease, w.err = false, Lease{}, nil
	return q.join(w, true)
}

func (q *Queue) join(w *Waiter, again bool) error {
	if err := q.admits(w, again); err != nil {
		return err
	}
	// Other queues may be asked to shed for it, so it is not taken with mu held.
	if err := q.account.Take(w.Bytes); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.admit(w, again); err != nil {
		q.account.Give(w.Bytes)
		return err
	}
	q.enter(w, again)
	return nil
}

// enter puts a waiter in its line. Callers hold mu.
func (q *Queue) enter(w *Waiter, again bool) {
	lines, key := q.linesOf(w), w.line()
	waiters := lines[key]
	if waiters == nil {
		waiters = list.New()
		lines[key] = waiters
	}
	if again {
		w.place = waiters.PushFront(w)
	} else {
		q.joined++
		w.number = q.joined
		w.place = waiters.PushBack(w)
	}
	if w.Silent {
		q.dispatch()
		return
	}
	q.held++
	if q.held == 1 && q.keepAwakes == 0 && !q.pods.AnyAnswering() {
		q.cold = ColdStart{Began: q.now()}
	}
	q.signal()
	q.dispatch()
	q.ensureRunning()
}

func (w *Waiter) line() line { return line{port: w.Port, pod: w.Pod} }

func (q *Queue) linesOf(w *Waiter) map[line]*list.List {
	if w.Silent {
		return q.silent
	}
	return q.lines
}

func (q *Queue) admits(w *Waiter, again bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.admit(w, again)
}

// admit returns why a waiter is not let in, if so. Callers hold mu.
func (q *Queue) admit(w *Waiter, again bool) error {
	switch {
	case q.closed:
		return ErrClosed
	case !w.Silent && !again && q.held >= q.limits.MaxPending:
		return ErrTooManyPending
	}
	return nil
}

// shed ends the wait of the waiters that came last with memory.ErrShed, until
// they have given back at least so many bytes or none is left, and returns how
// many these were.
func (q *Queue) shed(bytes int64) (given int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for given < bytes {
		w := q.newest()
		if w == nil {
			break
		}
		q.remove(w)
		given += w.Bytes
		w.err = memory.ErrShed
		w.Resolve()
	}
	q.ensureRunning()
	return given
}

// newest returns the waiter that came last, or nil; of the silent ones first, as
// they lose least. Callers hold mu.
func (q *Queue) newest() *Waiter {
	var newest *Waiter
	for _, lines := range []map[line]*list.List{q.silent, q.lines} {
		for _, line := range lines {
			if w := line.Back().Value.(*Waiter); newest == nil || w.number > newest.number {
				newest = w
			}
		}
		if newest != nil {
			break
		}
	}
	return newest
}

// Leave takes a waiter out of the line. It returns false when its wait was
// already over, and then Result tells how: a lease must still be ended.
func (q *Queue) Leave(w *Waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.resolved {
		return false
	}
	q.remove(w)
	q.ensureRunning()
	return true
}

// Wait is Join for callers with a goroutine to spare: it blocks until a pod
// can be used or ctx ends.
func (q *Queue) Wait(ctx context.Context, w *Waiter) (Lease, ColdStart, error) {
	resolved := make(chan struct{})
	w.Resolve = func() { close(resolved) }
	if err := q.Join(w); err != nil {
		return Lease{}, ColdStart{}, err
	}
	return q.await(ctx, w, resolved)
}

// WaitAgain is Rejoin for callers with a goroutine to spare.
func (q *Queue) WaitAgain(ctx context.Context, w *Waiter) (Lease, ColdStart, error) {
	resolved := make(chan struct{})
	w.Resolve = func() { close(resolved) }
	if err := q.Rejoin(w); err != nil {
		return Lease{}, ColdStart{}, err
	}
	return q.await(ctx, w, resolved)
}

func (q *Queue) await(ctx context.Context, w *Waiter, resolved <-chan struct{}) (Lease, ColdStart, error) {
	select {
	case <-resolved:
		return w.Result()
	case <-ctx.Done():
		if q.Leave(w) {
			return Lease{}, ColdStart{}, context.Cause(ctx)
		}
		return w.Result()
	}
}

// remove takes a waiter out of its line, for good. Callers hold mu.
func (q *Queue) remove(w *Waiter) {
	q.leaveLine(w)
	w.resolved = true
	q.account.Give(w.Bytes)
}

// leaveLine takes a waiter out of its line. Callers hold mu.
func (q *Queue) leaveLine(w *Waiter) {
	lines, key := q.linesOf(w), w.line()
	waiters := lines[key]
	waiters.Remove(w.place)
	if waiters.Len() == 0 {
		delete(lines, key)
	}
	w.place = nil
	if !w.Silent {
		q.held--
	}
}

// dispatch gives pods to waiters for as long as there are both. Callers hold mu.
func (q *Queue) dispatch() {
	if q.held == 0 && len(q.silent) == 0 {
		return
	}
	q.dispatchLines(q.lines, q.takeFor)
	q.dispatchLines(q.silent, func(w *Waiter) (Lease, bool) { return q.takeSilent(w.Port) })
	q.ensureRunning()
}

// takeFor takes a lease for a waiter. Callers hold mu.
func (q *Queue) takeFor(w *Waiter) (Lease, bool) {
	if w.Pod != nil {
		return q.takeAgain(w.Port, w.Pod, w.Number)
	}
	return q.take(w.Port)
}

func (q *Queue) dispatchLines(lines map[line]*list.List, take func(*Waiter) (Lease, bool)) {
	for _, waiters := range lines {
		for element := waiters.Front(); element != nil; element = waiters.Front() {
			w := element.Value.(*Waiter)
			lease, ok := take(w)
			if !ok {
				break
			}
			q.remove(w)
			w.lease, w.cold = lease, q.cold
			w.Resolve()
		}
	}
}
