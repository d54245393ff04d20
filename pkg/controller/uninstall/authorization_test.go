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
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
	return send(t, client, server.URL, paths...)
}

// send sends the requests for paths of a server as changes that begin at the same time, and
// returns the status of each.
func send(t *testing.T, client *http.Client, url string, paths ...string) map[string]int {
	t.Helper()
	together := newChanges(len(paths))
	statuses := map[string]int{}
	var mu sync.Mutex
	var requests errgroup.Group
	for _, path := range paths {
		requests.Go(func() error {
			ctx, ended := together.begin(t.Context())
			defer ended()
			status, err := patch(ctx, client, url+path)
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
	for of, status := range p.request(t, "/first", "/second") {
		if status != http.StatusOK {
			t.Errorf("%s gets %d, want 200", of, status)
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

// pipes is a network in which a server accepts what a client dials.
type pipes chan net.Conn

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p <- server
	return client, nil
}

// Accept implements net.Listener.
func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close implements net.Listener.
func (p pipes) Close() error {
	close(p)
	return nil
}

// Addr implements net.Listener.
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// The API server says when it has authorized a change. Nothing waits for a timeout then, also
// when a change fails.
func TestChangesAreCarriedOutAsSoonAsAllAreAuthorized(t *testing.T) {
	for name, paths := range map[string][]string{"all are allowed": {"/first", "/second"}, "one is forbidden": {"/forbidden", "/first", "/second"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := make(pipes)
				p := &permissions{authorized: make(chan struct{}), lost: make(chan struct{})}
				server := &http.Server{Handler: p}
				var serving sync.WaitGroup
				serving.Go(func() { _ = server.Serve(network) })
				transport := &http.Transport{DialContext: network.dial, ExpectContinueTimeout: time.Minute}
				began := time.Now()
				statuses := send(t, &http.Client{Transport: Transport(transport)}, "http://kubernetes.default.svc", paths...)
				if took := time.Since(began); took >= authorizationTimeout {
					t.Errorf("the changes took %s", took)
				}
				if statuses["/first"] != http.StatusOK || statuses["/second"] != http.StatusOK {
					t.Errorf("the statuses are %v", statuses)
				}
				transport.CloseIdleConnections()
				_ = server.Close()
				serving.Wait()
			})
		})
	}
}

// apiServer serves the parts of an installation, and takes all permissions away with the
// first finalizer that is removed. Each change that comes later is authorized later.
type apiServer struct {
	mu      sync.Mutex
	changes int
	once    sync.Once
	lost    chan struct{}
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	meta := metav1.ObjectMeta{Name: path.Base(r.URL.Path), UID: "a", ResourceVersion: "1", Finalizers: []string{Finalizer}}
	if r.Method == http.MethodPatch {
		a.mu.Lock()
		earlier := a.changes
		a.changes++
		a.mu.Unlock()
		select {
		case <-a.lost:
			w.WriteHeader(http.StatusForbidden)
			return
		case <-time.After(time.Duration(earlier) * 50 * time.Millisecond):
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		a.once.Do(func() { close(a.lost) })
		meta.Finalizers = nil
	}
	kind := metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}
	switch path.Base(path.Dir(r.URL.Path)) {
	case "namespaces":
		kind = metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}
	case "deployments":
		kind = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	case "serviceaccounts":
		kind = metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}
	case "clusterrolebindings":
		kind.Kind = "ClusterRoleBinding"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: meta})
}

func TestFinalizersAreRemovedWhenAllRemovalsAreAuthorized(t *testing.T) {
	api := &apiServer{lost: make(chan struct{})}
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	config.Wrap(Transport)
	host, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context) error { return nil }
	runner, err := New(Options{Host: host, Namespace: "elasti-system", Name: "elasti-apiserver", Run: nothing, Teardown: nothing})
	if err != nil {
		t.Fatal(err)
	}
	if err := runner.release(t.Context(), runner.parts); err != nil {
		t.Errorf("finalizers are left: %v", err)
	}
	if api.changes != 3 {
		t.Errorf("%d finalizers were removed, want 3", api.changes)
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
