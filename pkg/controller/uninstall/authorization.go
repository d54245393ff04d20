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

package uninstall

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// authorizationTimeout is how long changes wait until the API server has authorized all
// of them. Behind a proxy that keeps interim responses they wait for all of it.
const authorizationTimeout = 2 * time.Second

// changes are made at the same time because each takes the permission for the others
// with it. The API server carries them out once it has authorized all of them.
type changes struct {
	// unauthorized is how many are not known to be authorized.
	unauthorized atomic.Int32
	// authorized is closed when all of them are.
	authorized chan struct{}
}

// change is one of them.
type change struct {
	changes *changes
	// authorize records that it is authorized, or that it failed.
	authorize func()
}

type changeKey struct{}

// newChanges returns as many changes. Each is to be begun, and its function called when
// it has ended.
func newChanges(number int) *changes {
	c := &changes{authorized: make(chan struct{})}
	c.unauthorized.Store(int32(number))
	return c
}

// begin returns the context for the request of one change, and what is called when that
// has ended.
func (c *changes) begin(ctx context.Context) (context.Context, func()) {
	authorize := sync.OnceFunc(func() {
		if c.unauthorized.Add(-1) == 0 {
			close(c.authorized)
		}
	})
	return context.WithValue(ctx, changeKey{}, change{c, authorize}), authorize
}

// Transport makes a transport for the client of Options.Host. With the requests by which
// the product gives up its permissions it sends "Expect: 100-continue" (RFC 9110, section
// 10.1.1), and their bodies only when the API server has authorized all of these
// requests. The API server of Kubernetes responds 100 (Continue) after authorization. The
// transport is safe for concurrent use if base is.
func Transport(base http.RoundTripper) http.RoundTripper { return transport{base} }

type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	one, ok := request.Context().Value(changeKey{}).(change)
	if !ok || request.Body == nil {
		return t.base.RoundTrip(request)
	}
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{Got100Continue: one.authorize})
	held := request.Clone(ctx)
	held.Header.Set("Expect", "100-continue")
	waiting, stop := context.WithTimeout(ctx, authorizationTimeout)
	defer stop()
	held.Body = &heldBody{ReadCloser: request.Body, authorized: one.changes.authorized, expired: waiting.Done()}
	held.GetBody = nil
	return t.base.RoundTrip(held)
}

// WrappedRoundTripper returns what client-go closes idle connections of.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// heldBody is a body that is read when all changes are authorized, or that took too long.
type heldBody struct {
	io.ReadCloser
	authorized, expired <-chan struct{}
}

func (b *heldBody) Read(p []byte) (int, error) {
	select {
	case <-b.authorized:
	case <-b.expired:
	}
	return b.ReadCloser.Read(p)
}
