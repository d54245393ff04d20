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

package localreply

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHTTP1(t *testing.T) {
	full := New(http.StatusServiceUnavailable, ReasonTooManyPending, "as many as proxy.maxPending allows")
	for name, test := range map[string]struct {
		reply             *Reply
		withoutBody, last bool
		retryAfter        string
		body              bool
	}{
		"an error":             {full, false, false, "1", true},
		"an error to HEAD":     {full, true, false, "1", false},
		"the last":             {full, false, true, "1", true},
		"a bad request":        {New(http.StatusBadRequest, ReasonBadRequest, "malformed"), false, true, "", true},
		"no content":           {&Reply{Status: http.StatusNoContent, Reason: ReasonProbeResponse, ContentType: "text/plain", Body: []byte("x")}, false, false, "", false},
		"a content of its own": {&Reply{Status: http.StatusOK, Reason: ReasonProbeResponse, ContentType: "text/plain", Body: []byte("x"), Fields: []Field{{"X-A", "b"}}}, false, false, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			method := http.MethodGet
			if test.withoutBody {
				method = http.MethodHead
			}
			after := Open
			if test.last {
				after = Closes
			}
			message := test.reply.AppendHTTP1(nil, test.withoutBody, after)
			reader := bufio.NewReader(bytes.NewReader(message))
			response, err := http.ReadResponse(reader, &http.Request{Method: method})
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if rest, _ := io.ReadAll(reader); len(rest) > 0 {
				t.Errorf("%q follows the reply", rest)
			}
			if response.StatusCode != test.reply.Status || response.Close != test.last || (len(body) > 0) != test.body ||
				response.Header.Get(HeaderReason) != string(test.reply.Reason) || response.Header.Get("Retry-After") != test.retryAfter {
				t.Errorf("the reply is %q", message)
			}
			for _, field := range test.reply.Fields {
				if response.Header.Get(field.Name) != field.Value {
					t.Errorf("%s is %q", field.Name, response.Header.Get(field.Name))
				}
			}
		})
	}
}

func TestHTTP2(t *testing.T) {
	a := New(http.StatusServiceUnavailable, ReasonTooManyBytes, "100% of --max-held-bytes\n")
	a.Fields = []Field{{"X-Elasti-Progress", "pod"}}
	status, fields, body := a.HTTP2(false)
	var content metav1.Status
	if err := json.Unmarshal(body, &content); err != nil {
		t.Fatal(err)
	}
	if status != a.Status || content.Message != a.Message || content.Code != int32(a.Status) || content.Details.RetryAfterSeconds != retryAfterSeconds {
		t.Errorf("got %d %+v", status, content)
	}
	got := map[string]string{}
	for _, field := range fields {
		got[field.Name] = field.Value
	}
	if got["x-elasti-answer"] != string(ReasonTooManyBytes) || got["retry-after"] != "1" || got["x-elasti-progress"] != "pod" || got["content-type"] != "application/json" {
		t.Errorf("got %v", got)
	}

	status, fields, body = a.HTTP2(true)
	got = map[string]string{}
	for _, field := range fields {
		got[field.Name] = field.Value
	}
	if status != http.StatusOK || len(body) > 0 || got["grpc-status"] != "8" ||
		got["grpc-message"] != "100%25 of --max-held-bytes%0A" || got["x-elasti-answer"] != string(ReasonTooManyBytes) {
		t.Errorf("got %d %v %q", status, got, body)
	}
}
