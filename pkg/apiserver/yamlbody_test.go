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
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestYAMLIsBoundedAsItIsWithoutAliases(t *testing.T) {
	const limit = 1000
	long := strings.Repeat("x", 100)
	for name, test := range map[string]struct {
		contentType, body string
		want              int
	}{
		"a value many times":                {"application/yaml", "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20) + "]\n", http.StatusRequestEntityTooLarge},
		"in a patch":                        {"application/apply-patch+yaml", "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20) + "]\n", http.StatusRequestEntityTooLarge},
		"with parameters":                   {"Application/YAML; charset", "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20) + "]\n", http.StatusRequestEntityTooLarge},
		"as JSON":                           {"application/yaml", `{"a": &a "` + long + `", "b": [` + strings.Repeat("*a,", 20) + `0]}`, http.StatusRequestEntityTooLarge},
		"aliases of aliases":                {"application/yaml", "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n", http.StatusRequestEntityTooLarge},
		"many of nothing":                   {"application/yaml", "a: &a [[],[],[],[],[],[],[],[]]\nb: [" + strings.Repeat("*a,", 200) + "]\n", http.StatusRequestEntityTooLarge},
		"as a key":                          {"application/yaml", "a: &a " + long + "\nb:\n" + strings.Repeat("- {*a : 1}\n", 20), http.StatusRequestEntityTooLarge},
		"merged":                            {"application/yaml", "a: &a {x: " + long + "}\nb:\n" + strings.Repeat("- {<<: *a}\n", 20), http.StatusRequestEntityTooLarge},
		"an alias of what it is in":         {"application/yaml", "a: &a [*a]\n", http.StatusRequestEntityTooLarge},
		"no YAML":                           {"application/yaml", "a: &a [*\n", http.StatusBadRequest},
		"a value twice":                     {"application/yaml", "a: &a " + long + "\nb: [*a]\n", http.StatusOK},
		"an asterisk and an ampersand":      {"application/apply-patch+yaml", `{"query":"a * b & c"}`, http.StatusOK},
		"no aliases":                        {"application/yaml", "a: " + strings.Repeat("x", limit-3), http.StatusOK},
		"longer than what the server reads": {"application/yaml", "a: &a x\nb: *a\n" + strings.Repeat("#", limit), http.StatusOK},
		"not of YAML":                       {"application/json", "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20) + "]\n", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			handler := withBoundedYAML(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				body, err := io.ReadAll(req.Body)
				if err != nil {
					t.Error(err)
				}
				got = string(body)
			}), limit)
			request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
			request.Header.Set("Content-Type", test.contentType)
			response := httptest.NewRecorder()
			handler.ServeHTTP(response, request.WithContext(genericapirequest.WithRequestInfo(request.Context(), &genericapirequest.RequestInfo{})))
			if response.Code != test.want {
				t.Errorf("got %d %s, want %d", response.Code, response.Body, test.want)
			}
			if passed := got == test.body; passed != (test.want == http.StatusOK) {
				t.Errorf("the server gets %q", got)
			}
		})
	}
}

func TestYAMLThatCannotBeReadIsLeftToTheServer(t *testing.T) {
	broken := errors.New("the connection is closed")
	var got error
	handler := withBoundedYAML(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { _, got = io.ReadAll(req.Body) }), 1000)
	request := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader("a: &a x\n"), iotest.ErrReader(broken)))
	request.Header.Set("Content-Type", "application/yaml")
	handler.ServeHTTP(httptest.NewRecorder(), request)
	if !errors.Is(got, broken) {
		t.Errorf("the server gets the error %v", got)
	}
}

// Each takes many times its size, and the server has to remain for others.
func TestFewLargeYAMLBodiesAreHandledAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int32
		release := make(chan struct{})
		handler := withBoundedYAML(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			handled.Add(1)
			<-release
		}), 3<<20)
		var running sync.WaitGroup
		send := func(contentType string, bytes int, timeout time.Duration) *httptest.ResponseRecorder {
			ctx, cancel := context.WithTimeout(genericapirequest.WithRequestInfo(t.Context(), &genericapirequest.RequestInfo{}), timeout)
			request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader("["+strings.Repeat("1,", bytes/2)+"]"))
			request.Header.Set("Content-Type", contentType)
			response := httptest.NewRecorder()
			running.Go(func() {
				defer cancel()
				handler.ServeHTTP(response, request)
			})
			synctest.Wait()
			return response
		}
		for range largeYAMLBodies + 1 {
			send("application/yaml", maxYAMLBytes/2, time.Hour)
		}
		if handled.Load() != largeYAMLBodies {
			t.Errorf("%d large bodies are handled at a time", handled.Load())
		}
		for contentType, bytes := range map[string]int{"application/yaml": smallYAMLBytes / 2, "application/json": 3 << 20} {
			before := handled.Load()
			send(contentType, bytes, time.Hour)
			if handled.Load() != before+1 {
				t.Errorf("%d bytes of %s wait", bytes, contentType)
			}
		}
		if got := send("application/yaml", 2*maxYAMLBytes, time.Hour).Code; got != http.StatusRequestEntityTooLarge {
			t.Errorf("a body that is too long gets %d", got)
		}
		late := send("application/yaml", maxYAMLBytes/2, time.Second)
		<-time.After(time.Second)
		synctest.Wait()
		if late.Code != http.StatusTooManyRequests {
			t.Errorf("a body whose time has come to an end gets %d", late.Code)
		}
		close(release)
		running.Wait()
		if want := int32(largeYAMLBodies + 1 + 2); handled.Load() != want {
			t.Errorf("%d bodies were handled in the end, want %d", handled.Load(), want)
		}
	})
}
