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

package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
)

const grace = time.Minute

// awake returns a service in serve mode with a ready pod.
func awake(t *testing.T, grace time.Duration) *Service {
	t.Helper()
	s := New(Options{
		Namespace: "shop", Name: "cart", PublicService: "cart", Config: &Config{Mode: v1alpha1.ModeServe},
		Budget: memory.NewBudget(memory.Limits{Process: 1 << 30}), Logger: klog.Background(), ServeGrace: grace,
	})
	s.SetPods([]endpoint.Description{{ID: "a", Ready: true}})
	return s
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

// later returns when the wait has ended, or is certain to go on.
func later(s *Service) <-chan bool {
	result := make(chan bool, 1)
	go func() { result <- s.AwaitPath(context.Background(), func() bool { return false }) }()
	synctest.Wait()
	return result
}

func TestConnectionsAreServedForAWhileAfterResolversLeftThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := awake(t, grace)
		defer s.Close()
		pass(grace - time.Second)
		if !<-later(s) {
			t.Error("a late client is rejected")
		}
		pass(time.Second)
		if <-later(s) {
			t.Error("a client is served that no EndpointSlice led here")
		}
	})
}

// TestConnectionWaitsForAnySignThatResolversAreInThePath tries each sign of that: one of
// them precedes whatever the controller does next, or follows at once.
func TestConnectionWaitsForAnySignThatResolversAreInThePath(t *testing.T) {
	for name, sign := range map[string]func(*Service){
		"mode proxy":              func(s *Service) { s.Apply(&Config{Mode: v1alpha1.ModeProxy}) },
		"sleep was requested":     func(s *Service) { s.Apply(&Config{Mode: v1alpha1.ModeServe, FallingAsleep: true}) },
		"policy Always":           func(s *Service) { s.Apply(&Config{Mode: v1alpha1.ModeServe, Always: true}) },
		"no pod":                  func(s *Service) { s.SetPods(nil) },
		"no ready pod":            func(s *Service) { s.SetPods([]endpoint.Description{{ID: "a"}}) },
		"the last one terminates": func(s *Service) { s.SetPods([]endpoint.Description{{ID: "a", Ready: true, Terminating: true}}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := awake(t, grace)
				defer s.Close()
				pass(grace)
				result := later(s)
				select {
				case served := <-result:
					t.Fatalf("the client did not wait, and was served: %t", served)
				default:
				}
				sign(s)
				if !<-result {
					t.Error("the client that waited is rejected")
				}
				// The grace period begins anew.
				s.Apply(&Config{Mode: v1alpha1.ModeServe})
				s.SetPods([]endpoint.Description{{ID: "a", Ready: true}})
				pass(grace - time.Second)
				if !<-later(s) {
					t.Error("a late client is rejected")
				}
			})
		})
	}
}

func TestWithoutAGracePeriodConnectionsAreAlwaysServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := awake(t, 0)
		defer s.Close()
		pass(1000 * time.Hour)
		if !<-later(s) {
			t.Error("a client is rejected")
		}
	})
}

func TestConnectionWhoseClientHasLeftDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := awake(t, grace)
		defer s.Close()
		pass(grace)
		began := time.Now()
		if s.AwaitPath(t.Context(), func() bool { return time.Since(began) > time.Second }) {
			t.Error("it is served")
		}
		if waited := time.Since(began); waited > 2*time.Second {
			t.Errorf("it waited for %s", waited)
		}
	})
}

// TestServiceAcceptsFromWhenItsResolverIsToBeInThePath has the watch of the resolver be
// behind: it says for longer than the grace period that resolvers are out of the path.
func TestServiceAcceptsFromWhenItsResolverIsToBeInThePath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := awake(t, grace)
		defer s.Close()
		pass(grace)
		if s.InPath() {
			t.Fatal("connections are accepted past the grace period")
		}
		waiting := later(s)
		s.EnterPath()
		if !<-waiting {
			t.Error("the client that waited is rejected")
		}
		// Whatever was observed before.
		s.Apply(&Config{Mode: v1alpha1.ModeServe})
		s.SetPods([]endpoint.Description{{ID: "a", Ready: true}, {ID: "b", Ready: true}})
		pass(enteredTime - time.Second)
		if !s.InPath() || !<-later(s) {
			t.Error("a client is rejected before the resolver can know better")
		}
		pass(time.Second)
		if s.InPath() {
			t.Error("connections are accepted for ever")
		}
	})
}

// TestServiceThatWasInThePathLeavesIt checks that what the controller said before does not
// count any more.
func TestServiceThatWasInThePathLeavesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := awake(t, grace)
		defer s.Close()
		pass(grace)
		s.EnterPath()
		s.Apply(&Config{Mode: v1alpha1.ModeProxy})
		s.Apply(&Config{Mode: v1alpha1.ModeServe})
		pass(grace - time.Second)
		if !s.InPath() {
			t.Error("a late client is rejected")
		}
		pass(time.Second)
		if s.InPath() {
			t.Error("connections are accepted past the grace period")
		}
	})
}
