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

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// requestTimeout bounds one request, however long it is held.
	requestTimeout = time.Minute
	// maxInFlight bounds the requests that wait for a response; beyond it fewer
	// are sent.
	maxInFlight = 8000
)

// failure is one request that did not get 200.
type failure struct {
	url string
	// port is the client's, service the address of the Service.
	port    int
	service string
	// destination is the address that the Service's address stood for. It is
	// found out when the load has ended.
	destination string
	sent, ended time.Time
	err         error
}

func (f failure) String() string {
	return fmt.Sprintf("%s from port %d to %s, sent %s, failed after %s: %v", f.url, f.port, f.destination,
		f.sent.Format(time.StampMilli), f.ended.Sub(f.sent).Round(time.Millisecond), f.err)
}

// load sends requests, each over a connection of its own.
type load struct {
	applications []*cluster.Application
	limiter      *rate.Limiter

	mu       sync.Mutex
	total    int
	uses     uses
	failures []failure
}

func newLoad(applications []*cluster.Application, perSecond int) *load {
	return &load{applications: applications, uses: uses{}, limiter: rate.NewLimiter(rate.Limit(perSecond), 10)}
}

// run sends until ctx ends, and returns when every request has ended.
func (l *load) run(ctx context.Context) {
	slots := make(chan struct{}, maxInFlight)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for number := 0; l.limiter.Wait(ctx) == nil; number++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		inFlight.Go(func() {
			defer func() { <-slots }()
			// A request that was sent is waited for.
			l.send(context.WithoutCancel(ctx), l.applications[number%len(l.applications)], number)
		})
	}
}

func (l *load) send(ctx context.Context, app *cluster.Application, number int) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	f := failure{url: app.URL(fmt.Sprintf("/%d", number)), service: app.Address, sent: time.Now()}
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		f.port, err = bindAnyPort(raw)
		return err
	}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}
	f.err = get(ctx, &http.Client{Transport: transport}, app, f.url)
	f.ended = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	key := endpoints{port: f.port, service: f.service}
	l.uses[key] = append(l.uses[key], f.sent)
	if f.err != nil {
		l.failures = append(l.failures, f)
	}
}

// bindAnyPort gives a socket a port, so that it is known also when no connection
// comes about.
func bindAnyPort(raw syscall.RawConn) (port int, err error) {
	controlErr := raw.Control(func(fd uintptr) {
		// A port whose connection has just ended may be used again at once.
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return
		}
		if err = unix.Bind(int(fd), &unix.SockaddrInet4{}); err != nil {
			return
		}
		var address unix.Sockaddr
		if address, err = unix.Getsockname(int(fd)); err != nil {
			return
		}
		if v4, ok := address.(*unix.SockaddrInet4); ok {
			port = v4.Port
		}
	})
	return port, errors.Join(err, controlErr)
}

func get(ctx context.Context, client *http.Client, app *cluster.Application, url string) error {
	response, err := cluster.GetWith(ctx, client, url)
	if err != nil {
		return err
	}
	return response.FromApplication(app.Name)
}

// result returns how many requests there were, and which of them failed, with
// the destinations that they had. It must not be called before run has returned.
func (l *load) result(went *destinations) (total int, failures []failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.failures {
		l.failures[i].destination = went.find(l.failures[i], l.uses)
	}
	return l.total, l.failures
}
