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

// Package resolvertest has what the tests of the protocols of a resolver share:
// a service whose connections are served on loopback, pods, and waiting for a
// condition.
//
// It knows nothing of any protocol that it serves. Begin with Fixture.
package resolvertest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// timeout bounds how long a test waits for anything.
const timeout = 20 * time.Second

// Fixture is the service shop/cart, which has no pods yet.
type Fixture struct {
	// Service is the service.
	Service *service.Service
	// Budget is what its connections may take, 1 GiB.
	Budget *memory.Budget
	// Address is where it is reached once Serve was called.
	Address string

	t       testing.TB
	ctx     context.Context
	running sync.WaitGroup

	mu      sync.Mutex
	records []accesslog.Record
}

// New returns a Fixture in proxy mode that holds up to 100 requests for 30
// seconds, as far as change, which may be nil, leaves it at that. It ends with
// the test.
func New(tb testing.TB, change func(*service.Config)) *Fixture {
	tb.Helper()
	config := &service.Config{Mode: v1alpha1.ModeProxy, HoldTimeout: 30 * time.Second, Limits: hold.Limits{MaxPending: 100}}
	if change != nil {
		change(config)
	}
	f := &Fixture{t: tb, Budget: memory.NewBudget(memory.Limits{Process: 1 << 30})}
	f.Service = service.New(service.Options{
		Namespace: "shop", Name: "cart", PublicService: "cart",
		Config: config, Budget: f.Budget, Logger: klog.Background(),
		Finish: func(record *accesslog.Record) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.records = append(f.records, *record)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	f.ctx = ctx
	tb.Cleanup(func() {
		f.Service.Close()
		cancel()
		f.running.Wait()
	})
	return f
}

// Go runs f in the background until the context that it is given ends, which is
// when the test does. The end of the test waits for it.
func (f *Fixture) Go(run func(ctx context.Context)) {
	f.running.Go(func() { run(f.ctx) })
}

// Serve hands each connection to Address to serve, which returns when it has
// ended. Connections are closed at the end of the test.
func (f *Fixture) Serve(serve func(ctx context.Context, conn *net.TCPConn)) {
	f.t.Helper()
	f.Address = Listen(f.t, func(conn *net.TCPConn) {
		stop := context.AfterFunc(f.ctx, func() { conn.Close() })
		defer stop()
		serve(f.ctx, conn)
	})
}

// Client connects to Address. All that the test does with the connection has 20
// seconds.
func (f *Fixture) Client() *net.TCPConn {
	f.t.Helper()
	return Dial(f.t, f.Address)
}

// Pods makes pods at these addresses the ready ones.
func (f *Fixture) Pods(addresses ...string) { f.Service.SetPods(Pods(addresses...)) }

// Record waits for the nth record, from 1, and returns it.
func (f *Fixture) Record(n int) accesslog.Record {
	f.t.Helper()
	var found accesslog.Record
	Eventually(f.t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.records) < n {
			return false
		}
		found = f.records[n-1]
		return true
	})
	return found
}

// Records returns the records so far.
func (f *Fixture) Records() []accesslog.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]accesslog.Record(nil), f.records...)
}

// Held waits until n requests and connections are held.
func (f *Fixture) Held(n int) {
	f.t.Helper()
	Eventually(f.t, func() bool { return f.Service.Queue().Held() == n })
}

// InFlight waits until n requests and connections are with a pod.
func (f *Fixture) InFlight(n int) {
	f.t.Helper()
	Eventually(f.t, func() bool { return f.Service.Queue().InFlight() == n })
}

// Eventually waits until a condition is true, and fails the test when that takes
// too long.
func Eventually(tb testing.TB, condition func() bool) {
	tb.Helper()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatal("the condition did not come true in time")
		}
	}
}
