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

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// asResolver is set in the environment of a process that runs the resolver.
const asResolver = "ELASTI_TEST_AS_RESOLVER"

func TestMain(m *testing.M) {
	if os.Getenv(asResolver) != "" {
		main()
	}
	os.Exit(m.Run())
}

// api is an API server that serves one ElastiService only.
func api(t *testing.T, es *v1alpha1.ElastiService) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var items []any
		kind := metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		if strings.HasSuffix(r.URL.Path, "/elastiservices") {
			kind, items = es.TypeMeta, []any{es}
		}
		query := r.URL.Query()
		switch {
		case r.Method != http.MethodGet || query.Get("sendInitialEvents") != "":
			// Clients list instead.
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case query.Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{
				"apiVersion": kind.APIVersion, "kind": kind.Kind + "List", "metadata": map[string]string{"resourceVersion": "1"}, "items": items,
			})
		}
	}))
	t.Cleanup(server.Close)
	// Watches end first.
	t.Cleanup(server.CloseClientConnections)
	return server
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a",
		"clusters":[{"name":"a","cluster":{"server":%q}}],"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"users":[{"name":"a","user":{}}]}`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// resolver runs main in a process of its own, whose outputs are not read, and returns
// when it is ready. Ended receives the result of the process.
func resolver(t *testing.T, health string, arguments ...string) (process *os.Process, ended <-chan error) {
	t.Helper()
	reading, writing, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), os.Args[0], append(arguments, "--health-address="+health)...)
	command.Env = append(os.Environ(), asResolver+"=1")
	command.Stdout, command.Stderr = writing, writing
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	writing.Close()
	reading.Close()
	ends := make(chan error, 1)
	go func() { ends <- command.Wait() }()
	resolvertest.Eventually(t, func() bool {
		select {
		case err := <-ends:
			t.Fatalf("the resolver ended before it was ready: %v", err)
		default:
		}
		response, err := http.Get("http://" + health + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return command.Process, ends
}

// TestClosedStandardOutputDoesNotEndTheProcess closes the read end of the pipe for the
// access log and the log. A write to it raises SIGPIPE.
func TestClosedStandardOutputDoesNotEndTheProcess(t *testing.T) {
	port := resolvertest.FreePort(t)
	es := &v1alpha1.ElastiService{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiService"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", ResourceVersion: "1"},
		Spec:       v1alpha1.ElastiServiceSpec{Service: "cart"},
		Status: v1alpha1.ElastiServiceStatus{
			Mode: v1alpha1.ModeProxy, PrivateService: "elasti-cart-pvt-0",
			ProxyPorts: []v1alpha1.ProxyPort{{Port: 80, ProxyPort: port, AppProtocol: "http"}},
		},
	}
	health := fmt.Sprintf("127.0.0.1:%d", resolvertest.FreePort(t))
	process, ended := resolver(t, health, "--kubeconfig="+kubeconfig(t, api(t, es).URL), "--name=test", "--access-log",
		"--bind-address=127.0.0.1", "--metrics-address=", "--shutdown-delay=0s")
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 3 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/", net.JoinHostPort("127.0.0.1", fmt.Sprint(port))), nil)
		if err != nil {
			t.Fatal(err)
		}
		// The response is immediate, and is in the access log.
		request.Header.Set("User-Agent", "kube-probe/1.37")
		response, err := client.Do(request)
		if err != nil {
			t.Fatalf("a health check of a sleeping target: %v", err)
		}
		response.Body.Close()
		if got := response.Header.Get("X-Elasti-Answer"); got != "Asleep" {
			t.Errorf("the response is %d %q", response.StatusCode, got)
		}
	}
	// The process ends on SIGTERM, and not before.
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the resolver ended with %v", err)
	}
}
