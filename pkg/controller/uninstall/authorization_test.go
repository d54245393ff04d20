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
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
)

// permissions is an API server that authorizes requests until the first one is carried
// out. It is busy: it authorizes the second one when that may be so.
type permissions struct {
	once       sync.Once
	authorized chan struct{}
	lost       chan struct{}
}

func (p *permissions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/forbidden" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	if r.URL.Path == "/second" {
		<-p.authorized
		select {
		case <-p.lost:
		case <-time.After(100 * time.Millisecond):
		}
	}
	select {
	case <-p.lost:
		w.WriteHeader(http.StatusForbidden)
		return
	default:
	}
	if r.URL.Path == "/first" {
		close(p.authorized)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || string(body) != "finalizers" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	p.once.Do(func() { close(p.lost) })
}

// request sends the requests for paths as changes that begin at the same time, and
// returns the status of each.
func (p *permissions) request(t *testing.T, paths ...string) map[string]int {
	t.Helper()
	p.authorized, p.lost = make(chan struct{}), make(chan struct{})
	server := httptest.NewUnstartedServer(p)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	client := server.Client()
	client.Transport = Transport(client.Transport)
	together := newChanges(len(paths))
	statuses := map[string]int{}
	var mu sync.Mutex
	var requests errgroup.Group
	for _, path := range paths {
		requests.Go(func() error {
			ctx, ended := together.begin(t.Context())
			defer ended()
			status, err := patch(ctx, client, server.URL+path)
			mu.Lock()
			defer mu.Unlock()
			statuses[path] = status
			return err
		})
	}
	if err := requests.Wait(); err != nil {
		t.Fatal(err)
	}
	return statuses
}

func patch(ctx context.Context, client *http.Client, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPatch, url, strings.NewReader("finalizers"))
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestChangesAreCarriedOutWhenAllAreAuthorized(t *testing.T) {
	p := &permissions{}
	for path, status := range p.request(t, "/first", "/second") {
		if status != http.StatusOK {
			t.Errorf("%s gets %d, want 200", path, status)
		}
	}
}

func TestChangeThatIsForbiddenHoldsUpNoOther(t *testing.T) {
	p := &permissions{}
	statuses := p.request(t, "/forbidden", "/first", "/second")
	if statuses["/forbidden"] != http.StatusForbidden || statuses["/first"] != http.StatusOK || statuses["/second"] != http.StatusOK {
		t.Errorf("the statuses are %v", statuses)
	}
}

// silent responds when it has read the body, and not before, as behind a proxy that keeps
// interim responses.
type silent struct{}

func (silent) RoundTrip(request *http.Request) (*http.Response, error) {
	if _, err := io.ReadAll(request.Body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: request}, request.Body.Close()
}

func TestChangeThatIsNotKnownToBeAuthorizedIsCarriedOutAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, ended := newChanges(2).begin(t.Context())
		defer ended()
		status, err := patch(ctx, &http.Client{Transport: Transport(silent{})}, "https://kubernetes.default.svc")
		if err != nil || status != http.StatusOK {
			t.Errorf("got %d, %v", status, err)
		}
	})
}

func TestOtherRequestsAreSentAsTheyAre(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			w.WriteHeader(http.StatusExpectationFailed)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: Transport(http.DefaultTransport)}
	if status, err := patch(t.Context(), client, server.URL); err != nil || status != http.StatusOK {
		t.Errorf("got %d, %v", status, err)
	}
}
