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
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestWakeWithoutBodyIsAnEmptyWakeRequest(t *testing.T) {
	wake := request.RequestInfo{IsResourceRequest: true, APIGroup: "elasti.truefoundry.com", Resource: "elastiservices", Subresource: "wake"}
	status := wake
	status.Subresource = "status"
	// io.MultiReader hides the length from http.NewRequest, as in a chunked body.
	chunked := func(body string) io.Reader { return io.MultiReader(strings.NewReader(body)) }

	for name, test := range map[string]struct {
		info   request.RequestInfo
		method string
		body   io.Reader
		want   string
	}{
		"no body":               {wake, http.MethodPost, nil, "{}"},
		"empty body":            {wake, http.MethodPost, strings.NewReader(""), "{}"},
		"empty chunked body":    {wake, http.MethodPost, chunked(""), "{}"},
		"body":                  {wake, http.MethodPost, strings.NewReader(`{"spec":{"reason":"x"}}`), `{"spec":{"reason":"x"}}`},
		"chunked body":          {wake, http.MethodPost, chunked(`{"spec":{}}`), `{"spec":{}}`},
		"another subresource":   {status, http.MethodPost, nil, ""},
		"another method":        {wake, http.MethodPatch, nil, ""},
		"long body stays whole": {wake, http.MethodPost, chunked(strings.Repeat(" ", 100000)), strings.Repeat(" ", 100000)},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			handler := withEmptyWakeBody(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				body, err := io.ReadAll(req.Body)
				if err != nil {
					t.Error(err)
				}
				got = string(body)
				if got == "{}" && (req.ContentLength != 2 || req.Header.Get("Content-Type") != "application/json") {
					t.Errorf("a filled body has the length %d and the type %q", req.ContentLength, req.Header.Get("Content-Type"))
				}
			}))
			req := httptest.NewRequest(test.method, "/", test.body)
			req = req.WithContext(request.WithRequestInfo(req.Context(), &test.info))
			handler.ServeHTTP(httptest.NewRecorder(), req)
			if got != test.want {
				t.Errorf("the handler got a body of %d bytes, want %d bytes", len(got), len(test.want))
			}
		})
	}
}

func TestSerializerOffersTextOnly(t *testing.T) {
	for _, info := range newTextSerializer(Codecs).SupportedMediaTypes() {
		if info.MediaType != "application/json" && info.MediaType != "application/yaml" {
			t.Errorf("%s is offered", info.MediaType)
		}
	}
}
