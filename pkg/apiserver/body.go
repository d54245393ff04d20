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
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// maxBodyBytes bounds the body of a write, and what YAML takes when the values of its
	// aliases are written out. The largest ElastiService has less. To decode a body, and to
	// convert it from YAML before that, takes many times its size.
	maxBodyBytes = 1 << 20
	// smallBodyBytes is up to which of these sizes any number of bodies are handled at a
	// time, and largeBodies how many larger ones are, largeBodiesOfNamespace of them in
	// requests for one namespace. Another one waits for largeBodyWait: it has a seat of
	// priority and fairness meanwhile.
	smallBodyBytes         = 16 << 10
	largeBodies            = 2
	largeBodiesOfNamespace = 1
	largeBodyWait          = time.Second
	// largeBodyTime is after what time a large body counts as decoded, whatever lasts then,
	// such as a wake.
	largeBodyTime = 5 * time.Second
)

// writes reports whether the generic server reads the body of a request. That of another one,
// such as a watch, is left alone.
func writes(info *genericapirequest.RequestInfo) bool {
	return info.IsResourceRequest && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, info.Verb)
}

// limitOf returns how large the body of a request may be. A wake, a scale and the options of
// a deletion are small, and callers that may do no more have no use for a large body.
func limitOf(info *genericapirequest.RequestInfo) int {
	if info.Subresource == "wake" || info.Subresource == "scale" || info.Verb == "delete" || info.Verb == "deletecollection" {
		return smallBodyBytes
	}
	return maxBodyBytes
}

// withBoundedBodies bounds the memory that the bodies of writes take while they are decoded: a
// few requests by any caller, also one that may create nothing but wakes, would end the server
// for all of its clients. Large bodies are rejected, also of YAML that is large when the values
// of its aliases are written out, as the generic server does; a few that are not small are
// handled at a time, until their responses begin. Requests for one namespace leave a place to
// those for others: a caller that may write to one cannot keep all of them, whatever its name.
// A body that is being received has no place, which a client that sends slowly would keep.
// Other requests are passed to next unchanged.
func withBoundedBodies(next http.Handler) http.Handler {
	larger := newBodyPlaces()
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(req.Context())
		if !ok || !writes(info) || req.Body == nil {
			next.ServeHTTP(w, req)
			return
		}
		limit := limitOf(info)
		body, err := io.ReadAll(io.LimitReader(req.Body, int64(limit)+1))
		// A body that could not be read is left to the server.
		req.Body = readCloser{io.MultiReader(bytes.NewReader(body), req.Body), req.Body}
		if err != nil {
			next.ServeHTTP(w, req)
			return
		}
		entering := bodyEntry{
			larger:    larger,
			namespace: info.Namespace,
			limit:     limit,
			isYAML:    strings.Contains(strings.ToLower(req.Header.Get("Content-Type")), "yaml"),
		}
		leave, err := entering.enter(req.Context(), body)
		if err != nil {
			responsewriters.ErrorNegotiated(err, Codecs, v1alpha1.SchemeGroupVersion, w, req)
			return
		}
		defer leave()
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&leavingWriter{w, leave}), req)
	})
}

// leavingWriter calls leave when the response begins: a client that takes long to receive it
// delays no other one.
type leavingWriter struct {
	http.ResponseWriter
	leave func()
}

// Unwrap returns the writer that it writes to.
func (w *leavingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader begins the response.
func (w *leavingWriter) WriteHeader(status int) {
	w.leave()
	w.ResponseWriter.WriteHeader(status)
}

// Write begins the response, unless WriteHeader has.
func (w *leavingWriter) Write(content []byte) (int, error) {
	w.leave()
	return w.ResponseWriter.Write(content)
}

// bodyEntry says how a body is bounded.
type bodyEntry struct {
	// larger has the places of bodies that are not small.
	larger *bodyPlaces
	// namespace is that of the request.
	namespace string
	// limit is how many bytes it may have, also without aliases.
	limit  int
	isYAML bool
}

// enter returns when a body may be handled, or an API error. Without an error, leave is to
// be called when that is done. It may be called again.
func (e *bodyEntry) enter(ctx context.Context, body []byte) (leave func(), err error) {
	leave = func() {}
	entered := false
	defer func() {
		// Also when the parser of YAML panics.
		if !entered {
			leave()
		}
	}()
	if len(body) > e.limit {
		return leave, tooLarge("the body", e.limit)
	}
	if len(body) > smallBodyBytes {
		if leave, err = e.acquire(ctx); err != nil {
			return leave, err
		}
	}
	if e.isYAML {
		size, err := sizeWithoutAliases(body)
		if err != nil {
			return leave, err
		}
		if size > e.limit {
			return leave, tooLarge("the body, with the values of its aliases written out,", e.limit)
		}
		if size > smallBodyBytes && len(body) <= smallBodyBytes {
			if leave, err = e.acquire(ctx); err != nil {
				return leave, err
			}
		}
	}
	entered = true
	return leave, nil
}

// acquire takes a place of a body that is not small, and returns how it is left.
func (e *bodyEntry) acquire(ctx context.Context) (leave func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, largeBodyWait)
	defer cancel()
	release, err := e.larger.acquire(waiting, e.namespace)
	if err != nil {
		return func() {}, apierrors.NewTooManyRequests("other large bodies are handled: try again", 1)
	}
	release = sync.OnceFunc(release)
	expiry := time.AfterFunc(largeBodyTime, release)
	return func() {
		expiry.Stop()
		release()
	}, nil
}

func tooLarge(what string, limit int) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s has more than the %d bytes that are accepted: send less", what, limit))
}

// sizeWithoutAliases returns the size of a YAML document when the values of its aliases are
// written out, or more than maxBodyBytes. Most have no aliases, and are not parsed.
func sizeWithoutAliases(document []byte) (int, error) {
	if bytes.IndexByte(document, '&') < 0 || bytes.IndexByte(document, '*') < 0 {
		return len(document), nil
	}
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("the body is not YAML: %v", err))
	}
	written := aliasFree{limit: maxBodyBytes, anchored: map[*yaml.Node]int{}}
	return written.size(&root), nil
}

// aliasFree computes the size of YAML when the values of its aliases are written out.
type aliasFree struct {
	// limit is from where on a size need not be exact.
	limit int
	// anchored are the sizes of the nodes that aliases may refer to.
	anchored map[*yaml.Node]int
}

// size returns the size of a node, or more than the limit.
func (a *aliasFree) size(node *yaml.Node) int {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Anchor != "" {
		if known, ok := a.anchored[node]; ok {
			return known
		}
		// An alias in the value of its own anchor has no end.
		a.anchored[node] = a.limit + 1
	}
	total := len(node.Value) + 1
	for _, child := range node.Content {
		if total > a.limit {
			break
		}
		total += a.size(child)
	}
	if node.Anchor != "" {
		a.anchored[node] = total
	}
	return total
}
