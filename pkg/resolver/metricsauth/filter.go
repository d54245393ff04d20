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

// Package metricsauth authenticates and authorizes requests for the metrics of a
// resolver, as the API server does for its own metrics. A TokenReview identifies
// the user of a bearer token, and a SubjectAccessReview decides whether that user
// may get /metrics. The endpoint is served over TLS, so that no token is sent in
// the clear.
//
// It knows nothing of metrics. Begin with Filter.
package metricsauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// maxReviews bounds how many tokens are reviewed at a time, so that
	// unauthenticated clients cannot load the API server.
	maxReviews = 4
	// reviewTimeout bounds the reviews of one token, and the wait for their slot.
	reviewTimeout = 5 * time.Second
	// allowedFor and deniedFor are how long a decision is cached. allowedFor is longer
	// than the usual pause between two requests of a scraper.
	allowedFor = time.Minute
	deniedFor  = 10 * time.Second
	// maxDecisions bounds how many decisions are cached.
	maxDecisions = 256
	// maxTokenBytes bounds a token; those of service accounts are far smaller.
	maxTokenBytes = 16 << 10
)

// TokenReviews creates TokenReviews. The client of Kubernetes implements it.
type TokenReviews interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// AccessReviews creates SubjectAccessReviews. The client of Kubernetes implements
// it.
type AccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Options configure a Filter.
type Options struct {
	// Tokens and Access review the tokens and the access of their users.
	Tokens TokenReviews
	Access AccessReviews
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Filter passes on requests that are authenticated and authorized. It is safe for
// concurrent use.
type Filter struct {
	options   Options
	next      http.Handler
	reviews   chan struct{}
	flights   singleflight.Group
	decisions *cache.LRUExpireCache
}

// decision is the result of the reviews of a request. The zero value is that of a
// token which is not authenticated.
type decision struct {
	// user is the user of the token, empty when it is not authenticated.
	user    string
	allowed bool
}

// requestKey identifies a decision. It has a hash of the token only.
type requestKey struct {
	token        [sha256.Size]byte
	method, path string
}

// New returns a Filter in front of a handler.
func New(next http.Handler, options Options) *Filter {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Filter{
		options:   options,
		next:      next,
		reviews:   make(chan struct{}, maxReviews),
		decisions: cache.NewLRUExpireCacheWithClock(maxDecisions, options.Clock),
	}
}

// ServeHTTP implements http.Handler.
func (f *Filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenBytes {
		unauthorized(w)
		return
	}
	decided, err := f.decide(r.Context(), token, r.Method, r.URL.Path)
	switch {
	case err != nil:
		klog.FromContext(r.Context()).V(2).Info("Failed to authorize a request for metrics", "err", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the API server could not review the token; try again", http.StatusServiceUnavailable)
	case decided.user == "":
		unauthorized(w)
	case !decided.allowed:
		http.Error(w, fmt.Sprintf("%s may not %s %s; the ClusterRole elasti-metrics-reader allows it",
			decided.user, verbOf(r.Method), r.URL.Path), http.StatusForbidden)
	default:
		f.next.ServeHTTP(w, r)
	}
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "a bearer token of this cluster is required", http.StatusUnauthorized)
}

// decide returns the cached decision on a request, or reviews the request.
func (f *Filter) decide(ctx context.Context, token, method, path string) (decision, error) {
	key := requestKey{token: sha256.Sum256([]byte(token)), method: method, path: path}
	if known, ok := f.decisions.Get(key); ok {
		return known.(decision), nil
	}
	// Concurrent requests with the same key share the reviews. These are not
	// canceled when the client of one of them disconnects.
	flight := f.flights.DoChan(fmt.Sprintf("%x %s %s", key.token, method, path), func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		decided, err := f.review(shared, token, method, path)
		if err != nil {
			return decision{}, err
		}
		period := deniedFor
		if decided.allowed {
			period = allowedFor
		}
		f.decisions.Add(key, decided, period)
		return decided, nil
	})
	select {
	case result := <-flight:
		return result.Val.(decision), result.Err
	case <-ctx.Done():
		return decision{}, ctx.Err()
	}
}

// review creates the reviews of a request.
func (f *Filter) review(ctx context.Context, token, method, path string) (decision, error) {
	select {
	case f.reviews <- struct{}{}:
		defer func() { <-f.reviews }()
	case <-ctx.Done():
		return decision{}, errors.New("too many token reviews are in progress")
	}
	about, err := f.options.Tokens.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return decision{}, fmt.Errorf("creating TokenReview: %w", err)
	}
	if !about.Status.Authenticated || about.Status.User.Username == "" {
		return decision{}, nil
	}
	user := about.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access, err := f.options.Access.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:                  user.Username,
			UID:                   user.UID,
			Groups:                user.Groups,
			Extra:                 extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verbOf(method)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return decision{}, fmt.Errorf("creating SubjectAccessReview for %s: %w", user.Username, err)
	}
	return decision{user: user.Username, allowed: access.Status.Allowed && !access.Status.Denied}, nil
}

// verbOf returns the verb of an HTTP method for authorization.
func verbOf(method string) string { return strings.ToLower(method) }
