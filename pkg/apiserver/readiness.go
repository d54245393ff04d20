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

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"
)

// storageCheckInterval is the least time between two checks of the storage: the
// requests need no authentication, and each check reads the storage.
const storageCheckInterval = time.Second

// errCheckNotFinished is the result of a check that panicked.
var errCheckNotFinished = errors.New("the check of the storage has not finished")

// knowsAggregator is ready when the certificate authority of the aggregator has been
// read from the cluster. Before that, every request from the aggregator would count as
// anonymous and be rejected.
func knowsAggregator(authorities dynamiccertificates.CAContentProvider) healthz.HealthChecker {
	return healthz.NamedCheck("aggregator-authority", func(*http.Request) error {
		if _, known := authorities.VerifyOptions(); !known {
			return errors.New("the certificate authority of the aggregator is not known yet")
		}
		return nil
	})
}

// hasRightStore is ready once the server could read the store that its installation uses.
// Before, it would respond with 429 or 503 to its first clients. A store that becomes
// another one later counts as one that cannot be read: a server that has read the right
// one can still wake what it has read.
func hasRightStore(notBegun func() error) healthz.HealthChecker {
	return healthz.NamedCheck("store-identity", func(*http.Request) error { return notBegun() })
}

// canReadStorage is ready while the storage can be read.
func canReadStorage(check func(ctx context.Context) error, clock clock.PassiveClock) healthz.HealthChecker {
	shared := &sharedCheck{check: check, clock: clock}
	return healthz.NamedCheck("storage", func(request *http.Request) error { return shared.run(request.Context()) })
}

// sharedCheck shares the results of a check among concurrent requests, as the generic
// server does with its check of etcd. It is safe for concurrent use.
type sharedCheck struct {
	check func(ctx context.Context) error
	clock clock.PassiveClock

	mu sync.Mutex
	// started is when the latest check was, which is finished once done is closed.
	// Err is its result then.
	started time.Time
	done    chan struct{}
	err     error
}

// run returns the result of the latest check: of the one under way, or of one that
// was started less than storageCheckInterval ago, or else of a new one.
func (s *sharedCheck) run(ctx context.Context) error {
	s.mu.Lock()
	done := s.done
	if done != nil && (!isClosed(done) || s.clock.Since(s.started) < storageCheckInterval) {
		s.mu.Unlock()
		return s.await(ctx, done)
	}
	done = make(chan struct{})
	s.started, s.done = s.clock.Now(), done
	s.mu.Unlock()
	err := errCheckNotFinished
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
		close(done)
	}()
	// Others wait for it, whatever becomes of the request that began it. The check has a
	// timeout of its own.
	err = s.check(context.WithoutCancel(ctx))
	return err
}

// await returns the result of a check once it is finished.
func (s *sharedCheck) await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// addReadinessChecks adds checks of what a server needs to serve, and of its storage.
func addReadinessChecks(server *genericapiserver.GenericAPIServer, authentication *genericapiserver.AuthenticationInfo, extra *ExtraConfig) error {
	storage := func(ctx context.Context) error {
		if err := extra.StoreGuard.Problem(); err != nil || extra.StorageCheck == nil {
			return err
		}
		return extra.StorageCheck(ctx)
	}
	checks := []healthz.HealthChecker{hasRightStore(extra.StoreGuard.NotBegun), canReadStorage(storage, clock.RealClock{})}
	// A cluster without aggregation has no such configuration.
	if authentication.RequestHeaderConfig != nil {
		checks = append(checks, knowsAggregator(authentication.RequestHeaderConfig.CAContentProvider))
	}
	return server.AddReadyzChecks(checks...)
}
