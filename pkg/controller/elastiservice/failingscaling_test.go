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

package elastiservice

import (
	"context"
	"errors"
	"sync"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

var errUnavailable = errors.New("the API server is not available")

// failingScaling is a fakeScaling whose calls a test replaces. Each function is called in
// place of the methods of its name, and may call these as next.
type failingScaling struct {
	*fakeScaling

	mu            sync.Mutex
	pause, resume func(next func() error) error
	toZero, wake  func(next func() error) error
	// autoscalerError is that of each result of a wake.
	autoscalerError error
}

func (s *failingScaling) replaced(of *func(func() error) error, next func() error) error {
	s.mu.Lock()
	replacement := *of
	s.mu.Unlock()
	if replacement == nil {
		return next()
	}
	return replacement(next)
}

func (s *failingScaling) PauseAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.pause, func() error {
		s.fakeScaling.mu.Lock()
		s.resumed = nil
		s.fakeScaling.mu.Unlock()
		return s.fakeScaling.PauseAutoscaler(ctx, namespace, autoscaler)
	})
}

func (s *failingScaling) ResumeAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.resume, func() error { return s.fakeScaling.ResumeAutoscaler(ctx, namespace, autoscaler) })
}

func (s *failingScaling) KeepAutoscalerAwake(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error {
	return s.replaced(&s.resume, func() error { return s.fakeScaling.KeepAutoscalerAwake(ctx, namespace, autoscaler) })
}

func (s *failingScaling) ScaleToZero(ctx context.Context, target scaling.Target, read *autoscalingv1.Scale) error {
	return s.replaced(&s.toZero, func() error { return s.fakeScaling.ScaleToZero(ctx, target, read) })
}

func (s *failingScaling) Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, dryRun bool) (result scaling.Result, err error) {
	err = s.replaced(&s.wake, func() error {
		result, err = s.fakeScaling.Wake(ctx, target, autoscaler, minimum, dryRun)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	result.AutoscalerError = s.autoscalerError
	return result, err
}

func (s *failingScaling) Restore(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (result scaling.Result, err error) {
	err = s.replaced(&s.wake, func() error {
		result, err = s.fakeScaling.Restore(ctx, target, autoscaler, minimum)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	result.AutoscalerError = s.autoscalerError
	return result, err
}

// isPaused reports whether the autoscaler was paused and not resumed since.
func (s *failingScaling) isPaused() bool {
	s.fakeScaling.mu.Lock()
	defer s.fakeScaling.mu.Unlock()
	return len(s.paused) > 0 && len(s.resumed) == 0
}

// eventuallyResumed waits until the autoscaler is not paused.
func (c *cluster) eventuallyResumed(failing *failingScaling) {
	c.t.Helper()
	c.eventually(func() string {
		if failing.isPaused() {
			return "the autoscaler to go on"
		}
		return ""
	})
}

// newScaleDown is a cluster with an awake target that has an autoscaler.
func newScaleDown(t *testing.T, change func(*v1alpha1.ElastiService)) (*cluster, *failingScaling) {
	t.Helper()
	c := newCluster(t)
	failing := &failingScaling{fakeScaling: c.scaling}
	c.options.Scaling = failing
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	elastiService := cartElastiService()
	elastiService.Spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerKEDA, Name: "cart"}
	if change != nil {
		change(elastiService)
	}
	c.create(elastiService)
	return c, failing
}

// eventuallyAsBefore waits until a scale-down that failed has left nothing behind.
func (c *cluster) eventuallyAsBefore(failing *failingScaling) {
	c.t.Helper()
	c.eventually(func() string {
		switch {
		case c.elastiService("cart").Status.SleepRequestedTime != nil:
			return "the request for sleep to be given up"
		case c.scaling.replicas(c.t, "cart") != 2:
			return "the target to be awake"
		case failing.isPaused():
			return "the autoscaler to go on"
		}
		return ""
	})
	c.eventuallyMode("cart", v1alpha1.ModeServe)
}

// failsTimes fails a few times before it does what it should.
func failsTimes(times int) func(func() error) error {
	return func(next func() error) error {
		if times--; times >= 0 {
			return errUnavailable
		}
		return next()
	}
}
