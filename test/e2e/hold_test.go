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

package e2e

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

func TestRequestIsHeldForLongerThanAMinute(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{Arguments: []string{"-start-delay=65s"}})
	response := s.get(app, "/held")
	if held := response.CompletedAt.Sub(response.SentAt); held < time.Minute {
		t.Fatalf("the request was held for %s only, the test shows nothing", held)
	}
}

func TestRequestIsRejectedWithAReasonWhenTheHoldTimeoutOfTheUserIsOver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const holdTimeoutSeconds = 3
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-start-delay=1h"},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{HoldTimeoutSeconds: ptr.To[int32](holdTimeoutSeconds)}
		},
	})
	response, err := cluster.Get(s.ctx, app.URL("/"))
	s.check(err)
	if response.Status != http.StatusServiceUnavailable && response.Status != http.StatusGatewayTimeout {
		t.Errorf("status %d, want 503 or 504", response.Status)
	}
	if response.Header.Get(cluster.ResponseHeader) == "" || response.Body == "" {
		t.Errorf("the response %q has no reason, or is not from a resolver: %v", response.Body, response.Header)
	}
	if held := response.CompletedAt.Sub(response.SentAt); held < holdTimeoutSeconds*time.Second {
		t.Errorf("the request was held for %s, the hold timeout is %d s", held, holdTimeoutSeconds)
	}
}

func TestReadinessProbePeriodDoesNotDelayTheResponse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	// The kubelet's first probe comes before the application listens, and its second one
	// long after that.
	app := s.asleep(cluster.ApplicationOptions{Arguments: []string{"-start-delay=2s"}, ReadinessPeriod: 10 * time.Second})
	observer := s.observe()
	response := s.get(app, "/")
	ready, err := observer.Await(s.ctx, response.SentAt, cluster.EndpointReady, app.Name, "")
	s.check(err)
	if response.CompletedAt.After(ready.At) {
		t.Errorf("the response came %s after the kubelet's probe, it should not wait for that", response.CompletedAt.Sub(ready.At))
	}
}

func TestReleaseRespectsTheConcurrencyOfAPod(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const (
		clients     = 20
		concurrency = 2
		resolvers   = 2
	)
	app := s.asleep(cluster.ApplicationOptions{Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{MaxConcurrencyPerPod: ptr.To[int32](concurrency)}
	}})
	inFlight, failures := make([]int, clients), make([]error, clients)
	var ended sync.WaitGroup
	for i := range clients {
		ended.Go(func() {
			var response *cluster.Response
			if response, failures[i] = cluster.Get(s.ctx, app.URL("/slow?for=200ms")); failures[i] != nil {
				return
			}
			if failures[i] = response.FromApplication(app.Name); failures[i] == nil {
				inFlight[i], failures[i] = response.InFlight()
			}
		})
	}
	ended.Wait()
	for i := range clients {
		s.check(failures[i])
		if inFlight[i] > resolvers*concurrency {
			t.Errorf("the pod had %d requests at a time, each of %d resolvers may send it %d", inFlight[i], resolvers, concurrency)
		}
	}
}

func TestLongRequestFinishesThoughTheTargetIsScaledToZero(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.awake(cluster.ApplicationOptions{Linger: 10 * time.Second})
	s.awaitDirect(app)
	responded := make(chan error, 1)
	var response *cluster.Response
	go func() {
		var err error
		response, err = cluster.Get(s.ctx, app.URL("/slow?for=5s"))
		responded <- err
	}()
	s.check(app.Scale(s.ctx, 0))
	s.check(app.AwaitResolverSlice(s.ctx, true))
	s.check(<-responded)
	s.checkResponse(app, response, "/slow")
}
