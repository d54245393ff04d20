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

// Package scrape lets only those read the metrics of a resolver whom the cluster
// allows to. It asks the API server who a bearer token belongs to (TokenReview)
// and whether they may get /metrics (SubjectAccessReview), as the API server's
// own metrics are guarded, and serves over TLS, so that no token is sent in the
// clear.
package scrape

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
	// maxReviews bounds how many tokens are asked about at a time, so that
	// strangers cannot make a resolver load the API server.
	maxReviews = 4
	// reviewTimeout bounds one question, the wait for its turn included.
	reviewTimeout = 5 * time.Second
	// allowedFor and deniedFor are how long an answer counts. One that was
	// allowed scrapes about twice a minute.
	allowedFor = time.Minute
	deniedFor  = 10 * time.Second
	// maxVerdicts bounds how many answers are kept.
	maxVerdicts = 256
	// maxTokenBytes bounds a token; those of service accounts have about 1 KiB.
	maxTokenBytes = 16 << 10
)

// TokenReviews asks the API server whom a token belongs to; the client of
// Kubernetes has it.
type TokenReviews interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// AccessReviews asks the API server what somebody may do; the client of
// Kubernetes has it.
type AccessReviews interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Options are what a Guard is made of.
type Options struct {
	// Tokens and Access are where the API server is asked.
	Tokens TokenReviews
	Access AccessReviews
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Guard passes on requests of those who may make them. It is safe for
// concurrent use.
type Guard struct {
	options  Options
	next     http.Handler
	reviews  chan struct{}
	flights  singleflight.Group
	verdicts *cache.LRUExpireCache
}

// verdict is what the API server said about a token and a path. The zero value
// is somebody whom it does not know.
type verdict struct {
	// user is who the token belongs to, empty when it is nobody's.
	user    string
	allowed bool
}

// question is a token and what it is to be used for. The token itself is not kept.
type question struct {
	token        [sha256.Size]byte
	method, path string
}

// New returns a Guard of a handler.
func New(next http.Handler, options Options) *Guard {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Guard{
		options:  options,
		next:     next,
		reviews:  make(chan struct{}, maxReviews),
		verdicts: cache.NewLRUExpireCacheWithClock(maxVerdicts, options.Clock),
	}
}

// ServeHTTP implements http.Handler.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenBytes {
		unauthorized(w)
		return
	}
	said, err := g.ask(r.Context(), token, r.Method, r.URL.Path)
	switch {
	case err != nil:
		klog.FromContext(r.Context()).V(2).Info("Cannot find out who may read metrics", "err", err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the API server cannot be asked who may read metrics; try again", http.StatusServiceUnavailable)
	case said.user == "":
		unauthorized(w)
	case !said.allowed:
		http.Error(w, fmt.Sprintf("%s may not %s %s; the ClusterRole elasti-metrics-reader allows it",
			said.user, verbOf(r.Method), r.URL.Path), http.StatusForbidden)
	default:
		g.next.ServeHTTP(w, r)
	}
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "a bearer token of this cluster is needed", http.StatusUnauthorized)
}

// ask returns what is known of a token, or has the API server asked.
func (g *Guard) ask(ctx context.Context, token, method, path string) (verdict, error) {
	asked := question{token: sha256.Sum256([]byte(token)), method: method, path: path}
	if known, ok := g.verdicts.Get(asked); ok {
		return known.(verdict), nil
	}
	// Several who ask the same at once share the answer, and none of them ends it
	// for the others by going away.
	key := fmt.Sprintf("%x %s %s", asked.token, method, path)
	flight := g.flights.DoChan(key, func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		said, err := g.review(shared, token, method, path)
		if err != nil {
			return verdict{}, err
		}
		period := deniedFor
		if said.allowed {
			period = allowedFor
		}
		g.verdicts.Add(asked, said, period)
		return said, nil
	})
	select {
	case result := <-flight:
		return result.Val.(verdict), result.Err
	case <-ctx.Done():
		return verdict{}, ctx.Err()
	}
}

// review asks the API server.
func (g *Guard) review(ctx context.Context, token, method, path string) (verdict, error) {
	select {
	case g.reviews <- struct{}{}:
		defer func() { <-g.reviews }()
	case <-ctx.Done():
		return verdict{}, errors.New("too many tokens are being asked about")
	}
	about, err := g.options.Tokens.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("asking who a token belongs to: %w", err)
	}
	if !about.Status.Authenticated || about.Status.User.Username == "" {
		return verdict{}, nil
	}
	user := about.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access, err := g.options.Access.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:                  user.Username,
			UID:                   user.UID,
			Groups:                user.Groups,
			Extra:                 extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verbOf(method)},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("asking whether %s may read metrics: %w", user.Username, err)
	}
	return verdict{user: user.Username, allowed: access.Status.Allowed && !access.Status.Denied}, nil
}

// verbOf returns the verb that an HTTP method is for authorisation.
func verbOf(method string) string { return strings.ToLower(method) }
