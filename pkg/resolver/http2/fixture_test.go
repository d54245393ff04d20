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

package http2

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/destination"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/fallback"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with one service, on loopback.
type fixture struct {
	t       *testing.T
	service *service.Service
	server  *Server
	address string
	budget  *memory.Budget
	conns   atomic.Int32

	mu sync.Mutex
	// find is destination.Fixed where it is nil.
	find destination.Find
	// account is that of the service where it is nil.
	account *memory.Account
	records []accesslog.Record
}

func newFixture(t *testing.T, change func(*service.Config)) *fixture {
	t.Helper()
	return newFixtureWith(t, change, func(*service.Options) {})
}

func newFixtureWith(t *testing.T, change func(*service.Config), changeOptions func(*service.Options)) *fixture {
	t.Helper()
	config := &service.Config{Mode: v1alpha1.ModeProxy, HoldTimeout: 30 * time.Second, Limits: hold.Limits{MaxPending: 100}}
	if change != nil {
		change(config)
	}
	f := &fixture{t: t, budget: memory.NewBudget(memory.Limits{Process: 1 << 30})}
	options := service.Options{
		Namespace: "shop", Name: "cart", PublicService: "cart",
		Config: config, Budget: f.budget, Logger: klog.Background(),
		Finish: func(record *accesslog.Record) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.records = append(f.records, *record)
		},
	}
	changeOptions(&options)
	f.service = service.New(options)
	f.server = New(Options{Fallback: &fallback.Policy{PassiveUserAgents: []string{"kube-probe/", "Monitor "}}, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.conns.Add(1)
			running.Go(func() {
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				f.mu.Lock()
				find, account := f.find, f.account
				f.mu.Unlock()
				if account == nil {
					account = f.service.Memory()
				}
				if find == nil {
					find = destination.Fixed(f.service, service.Port{Number: 80})
				}
				f.server.Serve(ctx, conn, nil, account, find)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		f.service.Close()
		cancel()
		running.Wait()
	})
	return f
}

func (f *fixture) pods(addresses ...string) {
	var pods []endpoint.Description
	for _, address := range addresses {
		at := netip.MustParseAddrPort(address)
		pods = append(pods, endpoint.Description{
			ID: address, Name: address, Addresses: []netip.Addr{at.Addr()},
			Ports: map[string]uint16{"": at.Port()}, Ready: true,
		})
	}
	f.service.SetPods(pods)
}

func (f *fixture) eventually(condition func() bool) {
	f.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline.C:
			f.t.Fatal("the condition did not come true in time")
		}
	}
}

func (f *fixture) held(n int) {
	f.t.Helper()
	f.eventually(func() bool { return f.service.Queue().Held() == n })
}

// ended returns the records of n streams, once that many have ended.
func (f *fixture) ended(n int) []accesslog.Record {
	f.t.Helper()
	var records []accesslog.Record
	f.eventually(func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		records = slices.Clone(f.records)
		return len(records) >= n
	})
	return records
}

// client returns an HTTP client that speaks h2c with prior knowledge.
func (f *fixture) client() *http.Client {
	transport := &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		},
	}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// httpPod serves a handler in h2c.
func httpPod(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}
