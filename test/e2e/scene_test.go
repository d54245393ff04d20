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
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// testTimeout bounds one test; each takes a small part of it.
	testTimeout = 3 * time.Minute
	// cleanUpTimeout bounds what is done after a test has ended.
	cleanUpTimeout = 30 * time.Second
)

// connect connects to the cluster under test once for all tests.
var connect = sync.OnceValues(func() (*cluster.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return cluster.Connect(ctx)
})

// scene is the namespace of one test. A step that fails ends the test.
type scene struct {
	*testing.T
	*cluster.Cluster

	ctx       context.Context
	namespace string
}

// newScene creates a namespace, which is deleted when the test ends. When the test has
// failed, a diagnosis is logged first.
func newScene(t *testing.T) *scene {
	t.Helper()
	return newSceneWithin(t, testTimeout)
}

// newSceneWithin is newScene for a test with a bound of its own.
func newSceneWithin(t *testing.T, timeout time.Duration) *scene {
	t.Helper()
	connected, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	s := &scene{T: t, Cluster: connected, ctx: ctx}
	started := time.Now()
	s.namespace = s.newNamespace()
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
			defer cancel()
			t.Log(s.Diagnose(ctx, s.namespace, started))
		}
	})
	return s
}

// newNamespace creates another namespace, which is deleted when the test ends.
func (s *scene) newNamespace() string {
	s.Helper()
	name, err := s.CreateNamespace(s.ctx, "e2e")
	s.check(err)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		if err := s.DeleteNamespace(ctx, name); err != nil {
			s.Error(err)
		}
	})
	return name
}

// check ends the test when err is an error.
func (s *scene) check(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// step runs one step as a subtest. When it fails, the remaining steps are not run.
func (s *scene) step(name string, run func(*scene)) {
	s.Helper()
	if !s.Run(name, func(t *testing.T) {
		step := *s
		step.T = t
		run(&step)
	}) {
		s.FailNow()
	}
}

// asleep creates an application at zero replicas and waits until resolvers are in the path
// of its Service.
func (s *scene) asleep(options cluster.ApplicationOptions) *cluster.Application {
	s.Helper()
	return s.asleepIn(s.namespace, options)
}

func (s *scene) asleepIn(namespace string, options cluster.ApplicationOptions) *cluster.Application {
	s.Helper()
	app := s.NewApplication(namespace, options)
	s.check(app.Create(s.ctx))
	s.check(app.AwaitAsleep(s.ctx))
	s.check(app.AwaitResolverSlice(s.ctx, true))
	s.check(app.AwaitReachable(s.ctx))
	return app
}

// get sends one request and expects the application's response.
func (s *scene) get(app *cluster.Application, path string) *cluster.Response {
	s.Helper()
	response, err := cluster.Get(s.ctx, app.URL(path))
	s.check(err)
	s.checkResponse(app, response, path)
	return response
}

// checkResponse expects a response with status 200 that only the application can send.
func (s *scene) checkResponse(app *cluster.Application, response *cluster.Response, path string) {
	s.Helper()
	path, _, _ = strings.Cut(path, "?")
	s.check(response.FromApplication(app.Name))
	if !strings.HasPrefix(response.Body, "hello from "+app.Name+"-") || !strings.Contains(response.Body, "you requested "+path) {
		s.Fatalf("got %q, not the application's response to a request for %s", response.Body, path)
	}
}

// checkReplicas expects spec.replicas of the Deployment.
func (s *scene) checkReplicas(app *cluster.Application, want int32) {
	s.Helper()
	replicas, err := app.Replicas(s.ctx)
	s.check(err)
	if replicas != want {
		s.Fatalf("spec.replicas of Deployment %s is %d, want %d", app.Name, replicas, want)
	}
}

// checkPeer expects that the application received the request of a response from a
// resolver, or not from one.
func (s *scene) checkPeer(response *cluster.Response, fromResolver bool) {
	s.Helper()
	resolvers, err := s.ResolverAddresses(s.ctx)
	s.check(err)
	peer := response.PeerAddress()
	if peer == "" || slices.Contains(resolvers, peer) != fromResolver {
		s.Fatalf("the application got the request from %q, the resolvers are %v", peer, resolvers)
	}
}

// background runs a function concurrently until the returned stop is called or the test
// ends. Stop waits for its end.
func (s *scene) background(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var ended sync.WaitGroup
	ended.Go(func() { run(ctx) })
	stop = func() {
		cancel()
		ended.Wait()
	}
	s.Cleanup(stop)
	return stop
}

// observe watches the scene's namespace until the test ends.
func (s *scene) observe() *cluster.Observer {
	s.Helper()
	observer, err := s.NewObserver(s.namespace)
	s.check(err)
	started := make(chan struct{})
	s.background(func(ctx context.Context) { observer.Run(ctx, started) })
	select {
	case <-started:
	case <-s.ctx.Done():
		s.Fatal("the watches of the namespace did not start")
	}
	return observer
}
