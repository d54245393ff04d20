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
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// script returns one result after the other, and the last one from then on.
type script struct {
	results []any
	calls   int
}

func (s *script) RoundTrip(*http.Request) (*http.Response, error) {
	result := s.results[min(s.calls, len(s.results)-1)]
	s.calls++
	if err, ok := result.(error); ok {
		return nil, err
	}
	return &http.Response{StatusCode: result.(int), Body: io.NopCloser(strings.NewReader(""))}, nil
}

func TestReadsAreRetried(t *testing.T) {
	down := errors.New("connection refused")
	for name, test := range map[string]struct {
		method  string
		results []any
		calls   int
		status  int
	}{
		"all is well":           {"GET", []any{200}, 1, 200},
		"a restart":             {"GET", []any{down, 503, 404, 200}, 4, 200},
		"forbidden":             {"GET", []any{403}, 1, 403},
		"too old":               {"GET", []any{410}, 1, 410},
		"a write is not a read": {"POST", []any{503}, 1, 503},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &script{results: test.results}
				request, err := http.NewRequestWithContext(t.Context(), test.method, "https://server/apis", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := newRetrying(server).RoundTrip(request)
				if err != nil || response.StatusCode != test.status || server.calls != test.calls {
					t.Errorf("got %v, %v after %d calls", response, err, server.calls)
				}
			})
		})
	}
}

func TestReadsAreRetriedSoonAfterALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &script{results: []any{errors.New("connection refused")}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://server/apis", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newRetrying(server).RoundTrip(request); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		// At least one call every three seconds.
		if server.calls < 200 {
			t.Errorf("%d calls in ten minutes", server.calls)
		}
	})
}
