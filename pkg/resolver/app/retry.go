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

package app

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// retryBackoff is the pause before a read is retried: about 100 ms, 200 ms, … 2 s.
// The backoff of the informers grows to a minute, during which a resolver would miss
// new services although the server is available again.
var retryBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// retrying retries reads while the server is unavailable, until their context ends.
// It sends other requests once.
type retrying struct {
	next    http.RoundTripper
	backoff wait.Backoff
}

// newRetrying wraps a transport.
func newRetrying(next http.RoundTripper) http.RoundTripper {
	return &retrying{next: next, backoff: retryBackoff}
}

// RoundTrip implements http.RoundTripper.
func (t *retrying) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return t.next.RoundTrip(request)
	}
	backoff := t.backoff
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for attempt := 1; ; attempt++ {
		response, err := t.next.RoundTrip(request)
		if err == nil && !unavailable(response.StatusCode) {
			return response, nil
		}
		if request.Context().Err() != nil {
			return response, err
		}
		if err == nil {
			err = errStatus(response.Status)
			response.Body.Close()
		}
		if attempt == 1 {
			klog.FromContext(request.Context()).Info("The API server is unavailable, will retry", "path", request.URL.Path, "err", err)
		}
		timer.Reset(backoff.Step())
		select {
		case <-timer.C:
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
}

// unavailable reports whether a status means that the server is unavailable. The
// status of an aggregated API that is not registered yet is Not Found.
func unavailable(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// errStatus is the status of a response as an error.
type errStatus string

// Error implements error.
func (e errStatus) Error() string { return string(e) }
