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

package cluster

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxFailuresKept bounds how many failures a Traffic keeps the texts of.
const maxFailuresKept = 20

// Traffic sends requests at a steady rate, whether they get a response or not,
// as many independent users would.
type Traffic struct {
	// Application that receives the requests. Only its own responses count.
	Application *Application
	// Path of the requests, with a query if there is one.
	Path string
	// PerSecond is how many requests are sent a second.
	PerSecond int
	// Limit is how many requests are sent at most.
	Limit int
	// Timeout of one request.
	Timeout time.Duration
	// KeepAlive sends requests over connections that are kept open, instead of
	// one connection a request.
	KeepAlive bool

	mu       sync.Mutex
	total    int
	failed   int
	failures []string
}

// Run sends requests until ctx ends or the limit is reached, and returns when
// each got a response or has failed.
func (t *Traffic) Run(ctx context.Context) {
	transport := &http.Transport{DisableKeepAlives: !t.KeepAlive, MaxIdleConnsPerHost: t.PerSecond}
	client := &http.Client{Transport: transport}
	defer transport.CloseIdleConnections()
	// A request that was sent is waited for, also when no further ones are sent.
	sent := context.WithoutCancel(ctx)
	limiter := rate.NewLimiter(rate.Limit(t.PerSecond), 1)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for range t.Limit {
		if limiter.Wait(ctx) != nil {
			return
		}
		inFlight.Go(func() {
			request, cancel := context.WithTimeout(sent, t.Timeout)
			defer cancel()
			t.record(GetWith(request, client, t.Application.URL(t.Path)))
		})
	}
}

func (t *Traffic) record(response *Response, err error) {
	if err == nil {
		err = response.FromApplication(t.Application.Name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.total++
	if err == nil {
		return
	}
	t.failed++
	if len(t.failures) < maxFailuresKept {
		t.failures = append(t.failures, time.Now().Format(time.StampMilli)+": "+err.Error())
	}
}

// Result returns how many requests were sent, how many of them did not get the status
// 200 from the application, and the first errors. It must be called after Run.
func (t *Traffic) Result() (total, failed int, failures []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total, t.failed, t.failures
}
