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

package options

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// patientBackoff is how long a read waits before it is tried again: about
// 100 ms, 200 ms, … 2 s. The informers' own pauses grow to a minute, in which a
// resolver would not know of new services although the server is back.
var patientBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// patient repeats reads for as long as their context lasts while the server, or
// the way to it, is not there. Other requests it makes once.
type patient struct {
	next    http.RoundTripper
	backoff wait.Backoff
}

// newPatient wraps a transport.
func newPatient(next http.RoundTripper) http.RoundTripper {
	return &patient{next: next, backoff: patientBackoff}
}

// RoundTrip implements http.RoundTripper.
func (p *patient) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return p.next.RoundTrip(request)
	}
	backoff := p.backoff
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for attempt := 1; ; attempt++ {
		response, err := p.next.RoundTrip(request)
		if err == nil && !absent(response.StatusCode) {
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
			klog.FromContext(request.Context()).Info("The API server does not answer, will keep asking", "path", request.URL.Path, "err", err)
		}
		timer.Reset(backoff.Step())
		select {
		case <-timer.C:
		case <-request.Context().Done():
			return nil, request.Context().Err()
		}
	}
}

// absent reports whether a status means that there is nobody to answer: an
// aggregated API that is not registered yet is not found.
func absent(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// errStatus is the status of an answer, as an error.
type errStatus string

// Error implements error.
func (e errStatus) Error() string { return string(e) }
