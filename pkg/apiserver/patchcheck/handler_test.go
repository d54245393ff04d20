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

package patchcheck_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/patchcheck"
)

// maxBytes is the longest body that the server of these tests reads.
const maxBytes = 1000

// serve sends a request through the handler, and returns its status, what it says, and what
// the server behind it could read of the body, and with which error.
func serve(info request.RequestInfo, contentType string, body io.Reader) (status int, said, read string, err error) {
	handler := patchcheck.Handler(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		var passed []byte
		passed, err = io.ReadAll(req.Body)
		read = string(passed)
	}), patchcheck.Options{
		Resource: v1alpha1.SchemeGroupVersion.WithResource("elastiservices"),
		Kind:     elasti.Kind("ElastiService"),
		Type:     reflect.TypeFor[v1alpha1.ElastiService](),
		MaxBytes: maxBytes,
		Codecs:   apiserver.Codecs,
	})
	req := httptest.NewRequest(http.MethodPatch, "/", body)
	req.Header.Set("Content-Type", contentType)
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, req.WithContext(request.WithRequestInfo(req.Context(), &info)))
	return response.Code, response.Body.String(), read, err
}

// patched is the request for a patch of an ElastiService, with a change.
func patched(change func(*request.RequestInfo)) request.RequestInfo {
	info := request.RequestInfo{IsResourceRequest: true, Verb: "patch", APIGroup: "elasti.truefoundry.com", APIVersion: "v1alpha1", Resource: "elastiservices", Name: "cart"}
	if change != nil {
		change(&info)
	}
	return info
}

func TestPatchesOfElastiServicesAndTheirStatusesAreChecked(t *testing.T) {
	const merge, wrong = "application/merge-patch+json", `{"spec":{"cooldownPeriod":"5"}}`
	subresource := func(name string) request.RequestInfo {
		return patched(func(info *request.RequestInfo) { info.Subresource = name })
	}
	for name, test := range map[string]struct {
		info              request.RequestInfo
		contentType, body string
		rejected          bool
	}{
		"of the object":                {patched(nil), merge, wrong, true},
		"of the status":                {subresource("status"), merge, wrong, true},
		"with parameters":              {patched(nil), merge + "; charset=utf-8", wrong, true},
		"as long as it may be":         {patched(nil), merge, wrong + strings.Repeat(" ", maxBytes-len(wrong)), true},
		"of right types":               {patched(nil), merge, `{"spec":{"cooldownPeriod":5}}`, false},
		"longer than the server reads": {patched(nil), merge, wrong + strings.Repeat(" ", 3*maxBytes), false},
		"of the scale":                 {subresource("scale"), merge, wrong, false},
		"no patch":                     {patched(func(info *request.RequestInfo) { info.Verb = "update" }), merge, wrong, false},
		"of another resource":          {patched(func(info *request.RequestInfo) { info.Resource = "others" }), merge, wrong, false},
		"of another group":             {patched(func(info *request.RequestInfo) { info.APIGroup = "apps" }), merge, wrong, false},
		"of another version":           {patched(func(info *request.RequestInfo) { info.APIVersion = "v1" }), merge, wrong, false},
		"not of a resource":            {patched(func(info *request.RequestInfo) { info.IsResourceRequest = false }), merge, wrong, false},
		"of an unknown type":           {patched(nil), "text/plain", wrong, false},
		"without a type":               {patched(nil), "", wrong, false},
	} {
		t.Run(name, func(t *testing.T) {
			status, said, read, err := serve(test.info, test.contentType, strings.NewReader(test.body))
			if test.rejected && (status != http.StatusUnprocessableEntity || !strings.Contains(said, "spec.cooldownPeriod") || !strings.Contains(said, "cart") || read != "") {
				t.Errorf("got %d %s, and the server gets %q", status, said, read)
			}
			if !test.rejected && (status != http.StatusOK || err != nil || read != test.body) {
				t.Errorf("got %d %s, and the server gets %d bytes (%v), want %d", status, said, len(read), err, len(test.body))
			}
		})
	}
}

func TestAPatchThatCannotBeReadIsLeftToTheServer(t *testing.T) {
	const begun = `{"spec":{"cooldownPeriod":"5"}}`
	broken := errors.New("the connection is closed")
	status, _, read, err := serve(patched(nil), "application/merge-patch+json", io.MultiReader(strings.NewReader(begun), iotest.ErrReader(broken)))
	if status != http.StatusOK || read != begun || !errors.Is(err, broken) {
		t.Errorf("got %d, and the server gets %q and the error %v", status, read, err)
	}
}
