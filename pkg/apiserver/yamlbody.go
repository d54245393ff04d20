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
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// maxYAMLBytes bounds a YAML body. To read it takes about 120 times as many bytes. The
	// largest ElastiService has less, and kubectl sends JSON, also when it applies.
	maxYAMLBytes = 1 << 20
	// smallYAMLBytes is up to which size any number of YAML bodies are read at a time, and
	// largeYAMLBodies how many larger ones are. The others wait.
	smallYAMLBytes  = 16 << 10
	largeYAMLBodies = 2
)

// withBoundedYAML bounds what YAML bodies take that the generic server converts to JSON
// before it decodes them: a few requests by any caller, also one that may create nothing but
// wakes, would end the server for all of its clients. Long bodies are rejected, and those
// that take more than maxBytes when the values of their aliases are written out, as the
// generic server does; a few large ones are handled at a time. Other bodies are passed to
// next unchanged.
func withBoundedYAML(next http.Handler, maxBytes int64) http.Handler {
	large := semaphore.NewWeighted(largeYAMLBodies)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Body == nil || !strings.Contains(strings.ToLower(req.Header.Get("Content-Type")), "yaml") {
			next.ServeHTTP(w, req)
			return
		}
		body, err := io.ReadAll(io.LimitReader(req.Body, maxBytes+1))
		// A body that could not be read, or is too long, is left to the server.
		req.Body = readCloser{io.MultiReader(bytes.NewReader(body), req.Body), req.Body}
		if err == nil && len(body) > smallYAMLBytes {
			if len(body) > maxYAMLBytes {
				rejectBody(w, req, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the YAML body has more than %d bytes: send it as JSON", maxYAMLBytes)))
				return
			}
			if large.Acquire(req.Context(), 1) != nil {
				rejectBody(w, req, apierrors.NewTooManyRequests("other large YAML bodies are handled: send this one as JSON, or later", 1))
				return
			}
			defer large.Release(1)
		}
		if err == nil && int64(len(body)) <= maxBytes {
			if err := checkAliases(body, maxBytes); err != nil {
				rejectBody(w, req, err)
				return
			}
		}
		next.ServeHTTP(w, req)
	})
}

func rejectBody(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, Codecs, v1alpha1.SchemeGroupVersion, w, req)
}

// checkAliases returns an API error for a YAML document that takes more than maxBytes
// without aliases. Most have none, and are not parsed.
func checkAliases(document []byte, maxBytes int64) error {
	if bytes.IndexByte(document, '&') < 0 || bytes.IndexByte(document, '*') < 0 {
		return nil
	}
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the body is not YAML: %v", err))
	}
	written := aliasFree{limit: maxBytes, anchored: map[*yaml.Node]int64{}}
	if written.size(&root) > maxBytes {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the YAML body takes more than %d bytes when its aliases are written out: write it without aliases", maxBytes))
	}
	return nil
}

// aliasFree computes the size of YAML when the values of its aliases are written out.
type aliasFree struct {
	// limit is from where on a size need not be exact.
	limit int64
	// anchored are the sizes of the nodes that aliases may refer to.
	anchored map[*yaml.Node]int64
}

// size returns the size of a node, or more than the limit.
func (a *aliasFree) size(node *yaml.Node) int64 {
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
	total := int64(len(node.Value)) + 1
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
