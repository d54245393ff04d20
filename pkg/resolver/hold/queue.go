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

// Package hold makes requests and connections wait for a pod.
//
// Each ElastiService has one Queue. It grants a Lease, the right to use one pod for
// one request or connection. A waiter waits while no pod can serve or all have
// reached their concurrency limit, first come first served for each port. A wait
// needs no goroutine of its own: the queue calls back when it is over.
//
// It knows no protocol, and neither wakes nor probes: workers do, which it starts while
// something waits. Begin with Queue.
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

// Options configure a Queue.
type Options struct {
	// Limits are the first limits; SetLimits changes them.
	Limits Limits
	// Budget is shared by all queues of the process.
	Budget *memory.Budget
	// Dialer connects to the pods of leases. Optional.
	Dialer *dial.Dialer
	// Work wakes the target and probes its pods. It runs in a goroutine of the
	// queue while something is held, and its context ends when nothing is held any
	// more. Only one runs at a time.
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
	// silent is as lines, for connections on which no byte was sent.
	silent map[line]*list.List
	held   int
	// passive is how many of these are passive.
	passive int
	// joined is how many waiters have joined so far.
	joined uint64
	closed bool
	// keepAwakes is how many callers need pods without holding anything.
	keepAwakes int
	// cold is the current or latest cold start.
	cold ColdStart
	// worker is set while a goroutine runs work.
	worker  context.CancelFunc
	working sync.WaitGroup
}

// line identifies what the waiters of a line wait for.
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

// Memory returns the account of the memory of the service.
func (q *Queue) Memory() *memory.Account { return q.account }

// ColdStart has the times of the steps of a wake from zero. A zero time means that
// the step was not observed.
type ColdStart struct {
	// Began is when the first request or connection was held.
	Began time.Time
	// WakeSucceeded is when the first wake call after that succeeded.
	WakeSucceeded time.Time
	// EndpointReady is when the first pod could serve.
	EndpointReady time.Time
}

// Lease is the right to use one pod for one request or connection. It ends
// with exactly one call of Release or ConnectionRefused.
type Lease struct {
	// Pod is the pod, and Number the port to connect to.
	Pod    *endpoint.Pod
	Number uint16

	queue *Queue
	port  string
	// arrivals is Arrivals of the pods when the lease was taken.
	arrivals uint64
	// silent is true while no byte was sent on the connection.
	silent bool
	// recheck is true when the pod refused the previous connection.
	recheck bool
}

// Addresses returns where to connect to, in order of preference.
func (l Lease) Addresses() []netip.AddrPort {
	addresses := make([]netip.AddrPort, len(l.Pod.Addresses))
	for i, address := range l.Pod.Addresses {
		addresses[i] = netip.AddrPortFrom(address, l.Number)
	}
	return addresses
}

// Dial connects to the pod. When it fails, nothing was sent, and the lease is still
// to be ended: with Release when the error is a *localfault.Error or ctx has ended,
// which do not concern the pod, and with ConnectionRefused otherwise.
func (l Lease) Dial(ctx context.Context) (*net.TCPConn, error) {
	conn, err := l.queue.dialer.Pod(ctx, l.Addresses())
	if err == nil && l.recheck {
		l.queue.update(func() { l.queue.pods.Accepted(l.Pod, l.port, false) })
	}
	return conn, err
}

// Release ends the lease.
func (l Lease) Release() {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.giveBack()
	l.queue.dispatch()
}

// ConnectionRefused ends the lease and records that the pod refused a connection. The pod is
// not used until it accepts one or becomes ready again. While it is ready, one lease a second
// is to find out whether it does; where something waits for the port, a prober finds out.
func (l Lease) ConnectionRefused() {
	l.queue.mu.Lock()
	defer l.queue.mu.Unlock()
	l.giveBack()
	l.queue.pods.ConnectionRefused(l.Pod, l.port, l.queue.now())
	l.queue.pods.CountArrivals()
	l.queue.signal()
	l.queue.dispatch()
}

// giveBack counts one connection less for the pod. It must be called with mu held.
func (l Lease) giveBack() {
	if l.silent {
		l.queue.pods.ReturnSilent(l.Pod)
		return
	}
	l.queue.pods.Return(l.Pod)
}

// Waiter is one request or connection that waits for a pod.
type Waiter struct {
	// Port is the name of the Service port.
	Port string
	// Pod is the pod to which a connection is open already, at Number. The waiter
	// waits until that pod is below its concurrency limit. Nil: any pod.
	Pod    *endpoint.Pod
	Number uint16
	// Bytes is how many bytes of memory the waiter keeps.
	Bytes int64
	// Silent is true for a connection on which no byte was sent. It does not wake
	// the target and is not pending: it gets a silent lease once there is a pod.
	Silent bool
	// Passive is true for a request or connection that does not wake the target. It waits
	// only while a pod can serve, and has reached its concurrency limit.
	Passive bool
	// Resolve is called once, from any goroutine, when the wait is over and
	// Result can be called. It is called with the queue locked: it must not
	// block or use the queue.
	Resolve func()

	// Owned by the queue.
	place *list.Element
	// number orders the waiters by when they joined.
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

// TryTake returns a lease when a pod can be used at once and no waiter waits for
// the same port.
func (q *Queue) TryTake(port string) (Lease, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiters := q.lines[line{port: port}]; waiters != nil && waiters.Len() > 0 {
		return Lease{}, false
	}
	if lease, ok := q.recheck(port); ok {
		return lease, true
	}
	return q.take(port)
}

// recheck takes a lease on a pod that did not accept a connection and may accept another one.
// It must be called with mu held.
func (q *Queue) recheck(port string) (Lease, bool) {
	pod, number := q.pods.Recheck(port, q.limits.MaxConcurrencyPerPod, q.now)
	if pod == nil {
		return Lease{}, false
	}
	lease := q.lease(pod, number, port)
	lease.recheck = true
	return lease, true
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

// Rejoin puts a waiter, whose lease could not be used, at the front of the line.
// It fails as Join does, but never for the number of waiters.
func (q *Queue) Rejoin(w *Waiter) error {
	w.resolved, w.lease, w.err = false, Lease{}, nil
	return q.join(w, true)
}

func (q *Queue) join(w *Waiter, again bool) error {
	if err := q.admits(w, again); err != nil {
		return err
	}
	// Taking memory may make other queues and this one shed, which locks mu.
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

// enter puts a waiter in its line. It must be called with mu held.
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
	if w.Passive {
		q.passive++
	}
	if q.held == 1 && q.keepAwakes == 0 && !q.pods.AnyServing() {
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

// admit returns an error when a waiter cannot join. It must be called with mu held.
func (q *Queue) admit(w *Waiter, again bool) error {
	switch {
	case q.closed:
		return ErrClosed
	case !w.Silent && !again && q.held >= q.limits.MaxPending:
		return ErrTooManyPending
	}
	return nil
}

// shed ends the wait of the newest waiters with memory.ErrShed, until these have
// released at least that many bytes or none is left. It returns the number of
// bytes released.
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

// newest returns the waiter that joined last, or nil. Silent ones come first, as
// they lose least. It must be called with mu held.
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

// Leave removes a waiter from its line. It returns false when the wait was already
// over. Result then returns how it ended, and a lease must still be ended.
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

// Wait joins the line and blocks until a pod can be used or ctx ends.
func (q *Queue) Wait(ctx context.Context, w *Waiter) (Lease, ColdStart, error) {
	resolved := make(chan struct{})
	w.Resolve = func() { close(resolved) }
	if err := q.Join(w); err != nil {
		return Lease{}, ColdStart{}, err
	}
	return q.await(ctx, w, resolved)
}

// WaitAgain is Wait at the front of the line, as with Rejoin.
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

// remove ends the wait of a waiter. It must be called with mu held.
func (q *Queue) remove(w *Waiter) {
	q.leaveLine(w)
	w.resolved = true
	q.account.Give(w.Bytes)
}

// leaveLine removes a waiter from its line. It must be called with mu held.
func (q *Queue) leaveLine(w *Waiter) {
	lines, key := q.linesOf(w), w.line()
	waiters := lines[key]
	waiters.Remove(w.place)
	if waiters.Len() == 0 {
		delete(lines, key)
	}
	w.place = nil
	if w.Silent {
		return
	}
	q.held--
	if w.Passive {
		q.passive--
	}
}

// dispatch grants leases while there are both waiters and usable pods, and ends the waits of
// passive waiters where there are none. It must be called with mu held.
func (q *Queue) dispatch() {
	if q.held == 0 && len(q.silent) == 0 {
		return
	}
	q.dispatchLines(q.lines, q.takeFor)
	q.endPassive()
	q.dispatchLines(q.silent, func(w *Waiter) (Lease, bool) { return q.takeSilent(w.Port) })
	q.ensureRunning()
}

// takeFor takes a lease for a waiter. It must be called with mu held.
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

// endPassive ends the waits of passive waiters for ports on which no pod can serve any
// more. It must be called with mu held.
func (q *Queue) endPassive() {
	if q.passive == 0 {
		return
	}
	for line, waiters := range q.lines {
		if line.pod != nil || q.pods.Serving(line.port) {
			continue
		}
		for element := waiters.Front(); element != nil; {
			w := element.Value.(*Waiter)
			element = element.Next()
			if !w.Passive {
				continue
			}
			q.remove(w)
			w.err = ErrAsleep
			w.Resolve()
		}
	}
}
