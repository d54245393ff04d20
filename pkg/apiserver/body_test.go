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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// namespaces counts the namespaces of createRequest.
var namespaces atomic.Int32

// createRequest returns a request to create an object in a namespace of its own.
func createRequest(ctx context.Context, contentType string, body io.Reader) *http.Request {
	return createRequestIn(ctx, "namespace-"+strconv.Itoa(int(namespaces.Add(1))), contentType, body)
}

func createRequestIn(ctx context.Context, namespace, contentType string, body io.Reader) *http.Request {
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "create", Namespace: namespace})
	request := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
	request.Header.Set("Content-Type", contentType)
	return request
}

func TestBodiesAreBoundedAsTheyAreWithoutAliases(t *testing.T) {
	long := strings.Repeat("x", maxBodyBytes/10)
	many := "a: &a " + long + "\nb: [" + strings.Repeat("*a,", 20) + "]\n"
	ten := func(value string) string { return "[" + strings.Repeat(value+",", 10) + "]" }
	for name, test := range map[string]struct {
		contentType, body string
		want              int
	}{
		"a value many times":           {"application/yaml", many, http.StatusRequestEntityTooLarge},
		"in a patch":                   {"application/apply-patch+yaml", many, http.StatusRequestEntityTooLarge},
		"with parameters":              {"Application/YAML; charset", many, http.StatusRequestEntityTooLarge},
		"as JSON":                      {"application/yaml", `{"a": &a "` + long + `", "b": [` + strings.Repeat("*a,", 20) + `0]}`, http.StatusRequestEntityTooLarge},
		"aliases of aliases":           {"application/yaml", "a: &a " + ten("x") + "\nb: &b " + ten("*a") + "\nc: &c " + ten("*b") + "\nd: &d " + ten("*c") + "\ne: &e " + ten("*d") + "\nf: " + ten("*e") + "\n", http.StatusRequestEntityTooLarge},
		"many of nothing":              {"application/yaml", "a: &a [" + strings.Repeat("[],", 2000) + "]\nb: [" + strings.Repeat("*a,", 2000) + "]\n", http.StatusRequestEntityTooLarge},
		"as a key":                     {"application/yaml", "a: &a " + long + "\nb:\n" + strings.Repeat("- {*a : 1}\n", 20), http.StatusRequestEntityTooLarge},
		"merged":                       {"application/yaml", "a: &a {x: " + long + "}\nb:\n" + strings.Repeat("- {<<: *a}\n", 20), http.StatusRequestEntityTooLarge},
		"an alias of what it is in":    {"application/yaml", "a: &a [*a]\n", http.StatusRequestEntityTooLarge},
		"too large without aliases":    {"application/yaml", "a: " + strings.Repeat("x", maxBodyBytes), http.StatusRequestEntityTooLarge},
		"no YAML":                      {"application/yaml", "a: &a [*\n", http.StatusBadRequest},
		"a value twice":                {"application/yaml", "a: &a " + long + "\nb: [*a]\n", http.StatusOK},
		"an asterisk and an ampersand": {"application/apply-patch+yaml", `{"query":"a * b & c"}`, http.StatusOK},
		"no aliases":                   {"application/yaml", "a: " + strings.Repeat("x", maxBodyBytes-3), http.StatusOK},
		"not of YAML":                  {"application/json", many, http.StatusOK},
		"too large, not of YAML":       {"application/json", strings.Repeat("x", maxBodyBytes+1), http.StatusRequestEntityTooLarge},
		"too large, of no type":        {"", strings.Repeat("x", maxBodyBytes+1), http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			handler := withBoundedBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				body, err := io.ReadAll(req.Body)
				if err != nil {
					t.Error(err)
				}
				got = string(body)
			}))
			response := httptest.NewRecorder()
			handler.ServeHTTP(response, createRequest(t.Context(), test.contentType, strings.NewReader(test.body)))
			if response.Code != test.want {
				t.Errorf("got %d %s, want %d", response.Code, response.Body, test.want)
			}
			if passed := got == test.body; passed != (test.want == http.StatusOK) {
				t.Errorf("the server gets %d bytes", len(got))
			}
		})
	}
}

// Callers that may do no more than wake cannot keep others out.
func TestWakesHaveSmallBodies(t *testing.T) {
	for subresource, want := range map[string]int{"wake": http.StatusRequestEntityTooLarge, "scale": http.StatusRequestEntityTooLarge, "status": http.StatusOK} {
		request := createRequest(t.Context(), "application/json", strings.NewReader(strings.Repeat("x", smallBodyBytes+1)))
		info := &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "create", Subresource: subresource}
		response := httptest.NewRecorder()
		withBoundedBodies(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).
			ServeHTTP(response, request.WithContext(genericapirequest.WithRequestInfo(request.Context(), info)))
		if response.Code != want {
			t.Errorf("%s gets %d, want %d", subresource, response.Code, want)
		}
	}
}

// A deletion lasts as long as there is something to delete.
func TestDeletionsHaveSmallBodies(t *testing.T) {
	for verb, want := range map[string]int{"delete": http.StatusRequestEntityTooLarge, "deletecollection": http.StatusRequestEntityTooLarge, "patch": http.StatusOK} {
		for size, want := range map[int]int{smallBodyBytes: http.StatusOK, smallBodyBytes + 1: want} {
			request := createRequest(t.Context(), "application/json", strings.NewReader(strings.Repeat("x", size)))
			info := &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: verb}
			response := httptest.NewRecorder()
			withBoundedBodies(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).
				ServeHTTP(response, request.WithContext(genericapirequest.WithRequestInfo(request.Context(), info)))
			if response.Code != want {
				t.Errorf("%s with %d bytes gets %d, want %d", verb, size, response.Code, want)
			}
		}
	}
}

func TestBodiesThatCannotBeReadAreLeftToTheServer(t *testing.T) {
	broken := errors.New("the connection is closed")
	var got error
	handler := withBoundedBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { _, got = io.ReadAll(req.Body) }))
	handler.ServeHTTP(httptest.NewRecorder(), createRequest(t.Context(), "application/yaml", io.MultiReader(strings.NewReader("a: &a x\n"), iotest.ErrReader(broken))))
	if !errors.Is(got, broken) {
		t.Errorf("the server gets the error %v", got)
	}
}

// A watch has no use for a body, and lasts.
func TestBodiesOfReadsAreLeftAlone(t *testing.T) {
	for name, info := range map[string]*genericapirequest.RequestInfo{
		"a watch":        {IsResourceRequest: true, Verb: "watch"},
		"no resource":    {Verb: "post"},
		"without a verb": {IsResourceRequest: true},
	} {
		body := iotest.ErrReader(errors.New("the body is read"))
		handled := false
		handler := withBoundedBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			handled = req.Body != nil
		}))
		request := createRequest(t.Context(), "application/yaml", body)
		before := request.Body
		request = request.WithContext(genericapirequest.WithRequestInfo(request.Context(), info))
		handler.ServeHTTP(httptest.NewRecorder(), request)
		if !handled || request.Body != before {
			t.Errorf("%s: its body is replaced", name)
		}
	}
}

// Each takes many times its size, and the server has to remain for others.
func TestFewLargeBodiesAreHandledAtATime(t *testing.T) {
	large := "[" + strings.Repeat("1,", maxBodyBytes/4) + "]"
	expanding := "a: &a [" + strings.Repeat("1,", 1000) + "]\nb: [" + strings.Repeat("*a,", 100) + "]\n"
	for name, test := range map[string]struct{ contentType, body string }{
		"YAML":                 {"application/yaml", large},
		"YAML without aliases": {"application/yaml", expanding},
		"JSON":                 {"application/json", large},
		"of no type":           {"", large},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var handled atomic.Int32
				release := make(chan struct{})
				handler := withBoundedBodies(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					handled.Add(1)
					<-release
				}))
				var running sync.WaitGroup
				send := func(contentType, body string) *httptest.ResponseRecorder {
					response := httptest.NewRecorder()
					running.Go(func() { handler.ServeHTTP(response, createRequest(t.Context(), contentType, strings.NewReader(body))) })
					synctest.Wait()
					return response
				}
				for range largeBodies {
					send(test.contentType, test.body)
				}
				late := send(test.contentType, test.body)
				if handled.Load() != largeBodies {
					t.Errorf("%d are handled at a time", handled.Load())
				}
				send(test.contentType, "a: 1")
				if handled.Load() != largeBodies+1 {
					t.Error("a small body waits")
				}
				<-time.After(largeBodyWait)
				synctest.Wait()
				if late.Code != http.StatusTooManyRequests {
					t.Errorf("one that would have to wait longer gets %d", late.Code)
				}
				next := send(test.contentType, test.body)
				close(release)
				running.Wait()
				if want := int32(largeBodies + 1 + 1); handled.Load() != want || next.Code != http.StatusOK {
					t.Errorf("%d were handled in the end, want %d; one that waited gets %d", handled.Load(), want, next.Code)
				}
			})
		})
	}
}

// A caller that may write to one namespace keeps the others from nothing, also with many requests that
// last and many that wait.
func TestLargeBodiesOfOneNamespaceLeaveAPlaceToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var greedy, others atomic.Int32
		end := make(chan struct{})
		handler := withBoundedBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			if info, _ := genericapirequest.RequestInfoFrom(req.Context()); info.Namespace == "greedy" {
				greedy.Add(1)
				<-end
				return
			}
			others.Add(1)
		}))
		var running sync.WaitGroup
		send := func(namespace string) {
			running.Go(func() {
				handler.ServeHTTP(httptest.NewRecorder(), createRequestIn(t.Context(), namespace, "application/json", strings.NewReader(strings.Repeat("x", smallBodyBytes+1))))
			})
			synctest.Wait()
		}
		for range 10 * largeBodies {
			send("greedy")
		}
		for number := range 3 {
			send("shop-" + strconv.Itoa(number))
		}
		if greedy.Load() != largeBodiesOfNamespace || others.Load() != 3 {
			t.Errorf("%d bodies for one namespace are handled, and %d of the 3 for others", greedy.Load(), others.Load())
		}
		<-time.After(largeBodyWait)
		send("greedy")
		close(end)
		running.Wait()
		if want := int32(largeBodiesOfNamespace + 1); greedy.Load() != want {
			t.Errorf("%d bodies for one namespace were handled in the end, want %d", greedy.Load(), want)
		}
	})
}

// A namespace for which nothing is handled takes no memory.
func TestPlacesOfNamespacesEnd(t *testing.T) {
	places := newBodyPlaces()
	release, err := places.acquire(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := places.acquire(canceled, "shop"); err == nil {
		t.Error("a namespace has more places than it may")
	}
	release()
	if len(places.namespaces) != 0 {
		t.Errorf("%d namespaces are left", len(places.namespaces))
	}
}

// slowWriter is the connection of a client that takes nothing until it is released.
type slowWriter struct {
	*httptest.ResponseRecorder
	release chan struct{}
}

func (w slowWriter) Write(content []byte) (int, error) {
	<-w.release
	return w.ResponseRecorder.Write(content)
}

// A wake may take as long as its target.
func TestRequestThatLastsDelaysNoLargeBodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int32
		handler := withBoundedBodies(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			handled.Add(1)
			<-req.Context().Done()
		}))
		lasting, end := context.WithCancel(t.Context())
		var running sync.WaitGroup
		send := func() {
			running.Go(func() {
				handler.ServeHTTP(httptest.NewRecorder(), createRequest(lasting, "application/json", strings.NewReader(strings.Repeat("x", smallBodyBytes+1))))
			})
		}
		for range largeBodies {
			send()
		}
		<-time.After(largeBodyTime)
		send()
		synctest.Wait()
		if handled.Load() != largeBodies+1 {
			t.Errorf("%d are handled while the first ones last", handled.Load())
		}
		end()
		running.Wait()
	})
}

func TestClientThatDoesNotReadItsResponseDelaysNoLargeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int32
		handler := withBoundedBodies(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			handled.Add(1)
			if _, err := w.Write([]byte("response")); err != nil {
				t.Error(err)
			}
		}))
		release := make(chan struct{})
		var running sync.WaitGroup
		const clients = largeBodies + 2
		for range clients {
			running.Go(func() {
				handler.ServeHTTP(slowWriter{httptest.NewRecorder(), release}, createRequest(t.Context(), "application/json", strings.NewReader(strings.Repeat("x", smallBodyBytes+1))))
			})
		}
		synctest.Wait()
		if handled.Load() != clients {
			t.Errorf("%d of %d are handled while none of the clients reads", handled.Load(), clients)
		}
		close(release)
		running.Wait()
	})
}
