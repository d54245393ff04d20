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

package metricsauth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
)

// cluster responds to reviews: the token "reader" may read, "stranger" may not, and
// other tokens are not authenticated.
type cluster struct {
	*Filter
	clock          *clocktesting.FakePassiveClock
	tokens, access atomic.Int32
	fails          atomic.Bool
	// reviewing, when set, is called for each TokenReview.
	reviewing func()
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{clock: clocktesting.NewFakePassiveClock(time.Now())}
	c.Filter = New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metrics") }),
		Options{Tokens: tokenReviews{c}, Access: accessReviews{c}, Clock: c.clock})
	return c
}

type tokenReviews struct{ cluster *cluster }

// Create implements TokenReviews.
func (r tokenReviews) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	c := r.cluster
	c.tokens.Add(1)
	if c.reviewing != nil {
		c.reviewing()
	}
	if c.fails.Load() {
		return nil, errors.New("unavailable")
	}
	review = review.DeepCopy()
	if token := review.Spec.Token; token == "reader" || token == "stranger" {
		review.Status.Authenticated = true
		review.Status.User = authenticationv1.UserInfo{Username: token, Groups: []string{"all"}}
	}
	return review, nil
}

type accessReviews struct{ cluster *cluster }

// Create implements AccessReviews.
func (r accessReviews) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r.cluster.access.Add(1)
	review = review.DeepCopy()
	spec := review.Spec
	if spec.ResourceAttributes != nil || len(spec.Groups) != 1 {
		return nil, fmt.Errorf("the review is for %+v", spec)
	}
	review.Status.Allowed = spec.User == "reader" && *spec.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
	return review, nil
}

func (c *cluster) get(method, path, authorization string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, nil)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	recorder := httptest.NewRecorder()
	c.ServeHTTP(recorder, request)
	return recorder
}

func TestMetricsAreAuthorized(t *testing.T) {
	for _, test := range []struct {
		name, method, path, authorization string
		status                            int
	}{
		{"a reader", http.MethodGet, "/metrics", "Bearer reader", http.StatusOK},
		{"a reader, in lower case", http.MethodGet, "/metrics", "bearer reader", http.StatusOK},
		{"a reader of another path", http.MethodGet, "/debug", "Bearer reader", http.StatusForbidden},
		{"a reader with another method", http.MethodPost, "/metrics", "Bearer reader", http.StatusForbidden},
		{"a stranger", http.MethodGet, "/metrics", "Bearer stranger", http.StatusForbidden},
		{"an unknown token", http.MethodGet, "/metrics", "Bearer forged", http.StatusUnauthorized},
		{"no token", http.MethodGet, "/metrics", "", http.StatusUnauthorized},
		{"an empty token", http.MethodGet, "/metrics", "Bearer ", http.StatusUnauthorized},
		{"a password", http.MethodGet, "/metrics", "Basic cmVhZGVyOg==", http.StatusUnauthorized},
	} {
		t.Run(test.name, func(t *testing.T) {
			response := newCluster(t).get(test.method, test.path, test.authorization)
			if response.Code != test.status {
				t.Errorf("status %d, want %d: %s", response.Code, test.status, response.Body)
			}
			if (response.Body.String() == "metrics") != (test.status == http.StatusOK) {
				t.Errorf("the body is %q", response.Body)
			}
			if (response.Header().Get("WWW-Authenticate") != "") != (test.status == http.StatusUnauthorized) {
				t.Errorf("the header is %v", response.Header())
			}
		})
	}
}

func TestDecisionsAreCached(t *testing.T) {
	c := newCluster(t)
	for range 10 {
		c.get(http.MethodGet, "/metrics", "Bearer reader")
		c.get(http.MethodGet, "/metrics", "Bearer forged")
	}
	if reviews := c.tokens.Load(); reviews != 2 {
		t.Errorf("%d TokenReviews were created, want 2", reviews)
	}
	c.clock.SetTime(c.clock.Now().Add(allowedFor + time.Second))
	c.get(http.MethodGet, "/metrics", "Bearer reader")
	c.get(http.MethodGet, "/metrics", "Bearer forged")
	if tokens, access := c.tokens.Load(), c.access.Load(); tokens != 4 || access != 2 {
		t.Errorf("%d TokenReviews and %d SubjectAccessReviews were created, want 4 and 2", tokens, access)
	}
}

func TestFailuresAreNotCached(t *testing.T) {
	c := newCluster(t)
	c.fails.Store(true)
	if response := c.get(http.MethodGet, "/metrics", "Bearer reader"); response.Code != http.StatusServiceUnavailable || response.Header().Get("Retry-After") == "" {
		t.Errorf("status %d, header %v", response.Code, response.Header())
	}
	c.fails.Store(false)
	if response := c.get(http.MethodGet, "/metrics", "Bearer reader"); response.Code != http.StatusOK {
		t.Errorf("status %d once the API server is back", response.Code)
	}
}

func TestReviewsInFlightAreBounded(t *testing.T) {
	c := newCluster(t)
	reviewing := make(chan struct{}, 100)
	proceed := make(chan struct{})
	c.reviewing = func() { reviewing <- struct{}{}; <-proceed }
	var ended sync.WaitGroup
	for i := range 3 * maxReviews {
		ended.Go(func() { c.get(http.MethodGet, "/metrics", fmt.Sprintf("Bearer forged-%d", i)) })
	}
	for range maxReviews {
		<-reviewing
	}
	// A request whose client disconnects while it waits for a slot ends at once.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
	request.Header.Set("Authorization", "Bearer reader")
	recorder := httptest.NewRecorder()
	c.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d for a client that disconnected", recorder.Code)
	}
	if reviews := c.tokens.Load(); reviews != maxReviews {
		t.Errorf("%d reviews at a time, want %d", reviews, maxReviews)
	}
	close(proceed)
	ended.Wait()
}

func TestCertificates(t *testing.T) {
	config, err := TLSConfig("", "")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(newCluster(t))
	server.TLS = config
	server.StartTLS()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer reader")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK || response.TLS.PeerCertificates[0].Subject.CommonName == "" {
		t.Errorf("status %d", response.StatusCode)
	}
	for _, files := range [][2]string{{"missing.crt", "missing.key"}, {"only.crt", ""}} {
		if _, err := TLSConfig(files[0], files[1]); err == nil {
			t.Errorf("the files %v are accepted", files)
		}
	}
}
