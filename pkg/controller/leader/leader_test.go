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

package leader

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

// replica is a runner with what it runs.
type replica struct {
	cancel  context.CancelFunc
	ended   chan error
	started chan struct{}
	stopped chan struct{}
}

// startReplica starts a runner that counts in running how many run at a time.
func startReplica(t *testing.T, client *fake.Clientset, identity string, running *atomic.Int32) *replica {
	t.Helper()
	r := &replica{ended: make(chan error, 1), started: make(chan struct{}, 10), stopped: make(chan struct{}, 10)}
	runner, err := New(Options{Leases: client.CoordinationV1(), Namespace: "elasti-system", Identity: identity, Run: func(ctx context.Context) error {
		if running.Add(1) > 1 {
			t.Error("two replicas lead at a time")
		}
		r.started <- struct{}{}
		<-ctx.Done()
		running.Add(-1)
		r.stopped <- struct{}{}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.ended <- runner.Run(ctx) }()
	return r
}

func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
}

func TestHandOverOnACleanStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var running atomic.Int32
		first := startReplica(t, client, "first", &running)
		<-first.started
		second := startReplica(t, client, "second", &running)
		synctest.Wait()

		stopping := time.Now()
		first.stop(t)
		<-second.started
		if took := time.Since(stopping); took >= 3*time.Second {
			t.Errorf("the hand-over took %s", took)
		}
		second.stop(t)
	})
}

// Two replicas may have the same name.
func TestReplicasOfOneNameAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var running atomic.Int32
		first := startReplica(t, client, "same", &running)
		<-first.started
		second := startReplica(t, client, "same", &running)
		synctest.Wait()

		first.stop(t)
		<-second.started
		second.stop(t)
	})
}

func TestLosingTheLeaseStopsTheRunAndContendsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var unreachable atomic.Bool
		informerstest.React(&client.Fake, "*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return unreachable.Load(), nil, errors.New("connection refused")
		})
		var running atomic.Int32
		r := startReplica(t, client, "first", &running)
		<-r.started

		unreachable.Store(true)
		<-r.stopped
		unreachable.Store(false)
		<-r.started
		r.stop(t)
	})
}

func TestErrorOfTheRunEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		runner, err := New(Options{Leases: fake.NewClientset().CoordinationV1(), Namespace: "elasti-system", Identity: "first", Run: func(context.Context) error { return broken }})
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}

func TestMissingOptions(t *testing.T) {
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "needed") {
		t.Errorf("got %v", err)
	}
}
