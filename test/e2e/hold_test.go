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
	answer := s.get(app, "/patient")
	if held := answer.AnsweredAt.Sub(answer.SentAt); held < time.Minute {
		t.Fatalf("the request was held for %s only, the test shows nothing", held)
	}
}

func TestRequestIsRefusedWithAReasonWhenTheHoldTimeoutOfTheUserIsOver(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const holdTimeoutSeconds = 3
	app := s.asleep(cluster.ApplicationOptions{
		Arguments: []string{"-start-delay=1h"},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{HoldTimeoutSeconds: ptr.To[int32](holdTimeoutSeconds)}
		},
	})
	answer, err := cluster.Get(s.ctx, app.URL("/"))
	s.check(err)
	if answer.Status != http.StatusServiceUnavailable && answer.Status != http.StatusGatewayTimeout {
		t.Errorf("status %d, want 503 or 504", answer.Status)
	}
	if answer.Header.Get(cluster.ResponseHeader) == "" || answer.Body == "" {
		t.Errorf("the answer %q tells no reason, or is not a resolver's: %v", answer.Body, answer.Header)
	}
	if held := answer.AnsweredAt.Sub(answer.SentAt); held < holdTimeoutSeconds*time.Second {
		t.Errorf("the request was held for %s, the hold timeout is %d s", held, holdTimeoutSeconds)
	}
}

func TestReadinessProbePeriodDoesNotDelayTheAnswer(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	// The kubelet's first probe comes too early, its second one long after
	// the application is there.
	app := s.asleep(cluster.ApplicationOptions{Arguments: []string{"-start-delay=2s"}, ReadinessPeriod: 10 * time.Second})
	observer := s.observe()
	answer := s.get(app, "/")
	ready, err := observer.Await(s.ctx, answer.SentAt, cluster.EndpointReady, app.Name, "")
	s.check(err)
	if answer.AnsweredAt.After(ready.At) {
		t.Errorf("the answer came %s after the kubelet's probe, it should not wait for that", answer.AnsweredAt.Sub(ready.At))
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
			var answer *cluster.Answer
			if answer, failures[i] = cluster.Get(s.ctx, app.URL("/slow?for=200ms")); failures[i] != nil {
				return
			}
			if failures[i] = answer.FromApplication(app.Name); failures[i] == nil {
				inFlight[i], failures[i] = answer.InFlight()
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
	answered := make(chan error, 1)
	var answer *cluster.Answer
	go func() {
		var err error
		answer, err = cluster.Get(s.ctx, app.URL("/slow?for=5s"))
		answered <- err
	}()
	s.check(app.Scale(s.ctx, 0))
	s.check(app.AwaitResolverSlice(s.ctx, true))
	s.check(<-answered)
	s.checkAnswer(app, answer, "/slow")
}
