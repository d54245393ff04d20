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
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

const emptyObject = "{}"

// withEmptyWakeBody lets a POST to a wake subresource have no body, which the
// generic server would reject. The target can then be woken with a method and a
// path alone.
func withEmptyWakeBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if ok && req.Method == http.MethodPost && info.IsResourceRequest && info.APIGroup == elasti.GroupName && info.Subresource == "wake" {
			req = withBody(req)
		}
		next.ServeHTTP(w, req)
	})
}

func withBody(req *http.Request) *http.Request {
	if req.Body == nil {
		req.Body = http.NoBody
	}
	// The length of a chunked body is not known: its first byte shows whether it is
	// empty.
	body := bufio.NewReaderSize(req.Body, 16)
	if _, err := body.Peek(1); !errors.Is(err, io.EOF) {
		req.Body = readCloser{body, req.Body}
		return req
	}
	filled := req.Clone(req.Context())
	filled.Body = readCloser{strings.NewReader(emptyObject), req.Body}
	filled.ContentLength = int64(len(emptyObject))
	filled.TransferEncoding = nil
	filled.Header.Set("Content-Type", "application/json")
	return filled
}

type readCloser struct {
	io.Reader
	io.Closer
}
