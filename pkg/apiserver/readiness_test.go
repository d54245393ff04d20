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
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"
)

// authorities are those of an aggregator that can become known.
type authorities struct {
	dynamiccertificates.CAContentProvider
	known bool
}

func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	return x509.VerifyOptions{}, a.known
}

func TestServerIsReadyWhenItKnowsTheAggregator(t *testing.T) {
	provider := &authorities{}
	check := knowsAggregator(provider)
	request := httptest.NewRequest(http.MethodGet, "/readyz", nil)
	if check.Check(request) == nil {
		t.Error("it is ready without the certificate authority of the aggregator")
	}
	provider.known = true
	if err := check.Check(request); err != nil {
		t.Errorf("it is not ready: %v", err)
	}
}

// TestReadinessRequestsShareOneCheckOfTheStorage floods /readyz, as every client that reaches the
// port can.
func TestReadinessRequestsShareOneCheckOfTheStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int32
		var down atomic.Bool
		mux := http.NewServeMux()
		healthz.InstallReadyzHandler(mux, canReadStorage(func(ctx context.Context) error {
			checks.Add(1)
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			if down.Load() {
				return errors.New("the storage is down")
			}
			return nil
		}, clock.RealClock{}))
		const requests = 100
		flood := func(wantStatus int, wantChecks int32) {
			t.Helper()
			before := checks.Load()
			statuses := make(chan int, requests)
			for range requests {
				go func() {
					response := httptest.NewRecorder()
					mux.ServeHTTP(response, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
					statuses <- response.Code
				}()
			}
			for range requests {
				if status := <-statuses; status != wantStatus {
					t.Errorf("a request gets %d, want %d", status, wantStatus)
				}
			}
			if got := checks.Load() - before; got != wantChecks {
				t.Errorf("%d requests made %d checks, want %d", requests, got, wantChecks)
			}
		}
		flood(http.StatusOK, 1)
		down.Store(true)
		flood(http.StatusOK, 0)
		<-time.After(storageCheckInterval)
		flood(http.StatusInternalServerError, 1)
		down.Store(false)
		<-time.After(storageCheckInterval)
		// The client whose request begins the check disconnects.
		ctx, cancel := context.WithCancel(t.Context())
		go mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
		synctest.Wait()
		cancel()
		flood(http.StatusOK, 0)
	})
}
