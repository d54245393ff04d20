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

package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// loneServer is a server without a Service, to which tests connect directly. Its
// controller is for one namespace, and ignores those of the shared server.
type loneServer struct {
	process *environment.Process
	// config is the client configuration of the cluster's administrator.
	config *rest.Config
}

// startLoneServer starts one and waits until it is ready.
func startLoneServer(t *testing.T, namespace string, flags ...string) *loneServer {
	t.Helper()
	server := runLoneServer(t, namespace, flags...)
	server.waitUntilReady(t, namespace)
	return server
}

// runLoneServer starts one.
func runLoneServer(t *testing.T, namespace string, flags ...string) *loneServer {
	t.Helper()
	port, err := shared.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{
		"--kubeconfig=" + shared.Server.Kubeconfig,
		"--bind-address=" + shared.Server.Address,
		"--secure-port=" + strconv.Itoa(port),
		"--namespaces=" + namespace,
		newStoreRecord(t, namespace),
	}, flags...)
	process, err := shared.Server.StartAnother(filepath.Join(t.TempDir(), "log"), nil, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(process.Tail())
		}
	})
	config := rest.CopyConfig(shared.Admin)
	config.Host = "https://" + net.JoinHostPort(shared.Server.Address, strconv.Itoa(port))
	config.CAData, config.Insecure = nil, true
	return &loneServer{process: process, config: config}
}

// startEtcd starts an etcd that lives in a folder, and ends after the test.
func startEtcd(t *testing.T, directory string) *environment.Etcd {
	t.Helper()
	etcd := shared.NewEtcd(directory)
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			t.Error(err)
		}
	})
	return etcd
}

// stop ends the server.
func (s *loneServer) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Stop(); err != nil {
		t.Fatal(err)
	}
}

// waitUntilReady waits until the server serves the administrator.
func (s *loneServer) waitUntilReady(t *testing.T, namespace string) {
	t.Helper()
	s.waitForHealth(t, "/readyz", http.StatusOK)
	// When it is ready it accepts the aggregator, and other clients shortly after that.
	eventually(t, "the server authorizes the administrator", func(ctx context.Context) string {
		_, err := s.elastiServices(t, namespace).List(ctx, metav1.ListOptions{Limit: 1})
		return errorText(err)
	})
}

// newStoreRecord returns the flag of servers whose store is not that of the shared server.
// Servers with one name share a store record.
func newStoreRecord(t *testing.T, name string) string {
	t.Helper()
	flag, err := shared.NewStoreRecord(t.Context(), name+"-store")
	if err != nil {
		t.Fatal(err)
	}
	return flag
}

func (s *loneServer) elastiServices(t *testing.T, namespace string) elastiv1alpha1client.ElastiServiceInterface {
	t.Helper()
	return elastiClient(t, s.config).ElastiV1alpha1().ElastiServices(namespace)
}

// health sends a probe as a kubelet does: on a new connection and without credentials.
func (s *loneServer) health(ctx context.Context, path string) (code int, message string, err error) {
	config := rest.AnonymousClientConfig(s.config)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return 0, "", err
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func (s *loneServer) waitForHealth(t *testing.T, path string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s returns %d", path, want), func(ctx context.Context) string {
		select {
		case <-s.process.Exited():
			t.Fatalf("the server has ended\n%s", s.process.Tail())
		default:
		}
		code, body, err := s.health(ctx, path)
		if err != nil {
			return err.Error()
		}
		if code != want {
			return fmt.Sprintf("it returns %d: %s", code, body)
		}
		return ""
	})
}

// An unavailable storage makes a server unready, but not unhealthy, because a restart would
// not help.
func TestLivenessDoesNotDependOnStorage(t *testing.T) {
	namespace := newNamespace(t)
	etcd := startEtcd(t, t.TempDir())
	server := startLoneServer(t, namespace, "--storage=etcd", "--etcd-servers="+etcd.Endpoint)
	if _, err := server.elastiServices(t, namespace).Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	expectStored(t, etcd.Endpoint, namespace)

	if err := etcd.Stop(); err != nil {
		t.Fatalf("stopping etcd: %v", err)
	}
	server.waitForHealth(t, "/readyz", http.StatusInternalServerError)
	server.waitForHealth(t, "/livez", http.StatusInternalServerError)
	code, body, err := server.health(t.Context(), livenessProbe)
	if err != nil || code != http.StatusOK {
		t.Errorf("%s returns %d without storage (error: %v), want 200: %s", livenessProbe, code, err, body)
	}
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	server.waitForHealth(t, "/readyz", http.StatusOK)
	if _, err := server.elastiServices(t, namespace).Get(t.Context(), "app", metav1.GetOptions{}); err != nil {
		t.Errorf("reading after the outage: %v", err)
	}
}

// The server stays an endpoint of its Service, because a wake needs only the cached
// ElastiService and the scale of its target.
func TestWakesGoOnWithoutStorage(t *testing.T) {
	namespace := newNamespace(t)
	createDeployment(t, namespace, 0)
	etcd := startEtcd(t, t.TempDir())
	server := startLoneServer(t, namespace, "--storage=etcd", "--etcd-servers="+etcd.Endpoint)
	services := server.elastiServices(t, namespace)
	if _, err := services.Create(t.Context(), newElastiService("app"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	eventually(t, "the server has read it", func(ctx context.Context) string {
		_, err := services.Get(ctx, "app", metav1.GetOptions{ResourceVersion: "0"})
		return errorText(err)
	})
	if err := etcd.Stop(); err != nil {
		t.Fatalf("stopping etcd: %v", err)
	}
	server.waitForHealth(t, "/readyz", http.StatusInternalServerError)
	server.waitForHealth(t, readinessProbe, http.StatusOK)
	woken, err := services.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
	if err != nil || woken.Status.Replicas != 1 {
		t.Errorf("without storage a wake returns %+v (%v), want 1 replica", woken, err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("the target has %d replicas, want 1", replicas)
	}
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	server.waitForHealth(t, "/readyz", http.StatusOK)
}

// expectStored expects the ElastiService "app" at the key that servers of all versions
// use, in a form that all of them can read.
func expectStored(t *testing.T, endpoint, namespace string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: waitTimeout, Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	key := "/registry/elasti.truefoundry.com/elasti.truefoundry.com/elastiservices/" + namespace + "/app"
	response, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	if err != nil {
		t.Fatalf("reading from etcd: %v", err)
	}
	var keys []string
	for _, pair := range response.Kvs {
		keys = append(keys, string(pair.Key))
		if string(pair.Key) != key {
			continue
		}
		var stored v1alpha1.ElastiService
		if err := json.Unmarshal(pair.Value, &stored); err != nil {
			t.Errorf("it is not stored as JSON: %v: %s", err, pair.Value)
		}
		if stored.APIVersion != "elasti.truefoundry.com/v1alpha1" || stored.Kind != "ElastiService" || stored.Spec.Service != "app" {
			t.Errorf("it is stored as %s", pair.Value)
		}
		return
	}
	t.Errorf("etcd has no %s, it has %q", key, keys)
}

// shutdownDelay is how long a server is unready before it stops serving, during which its
// endpoint is removed.
const shutdownDelay = 3 * time.Second

func TestShutdownBeginsWithReadinessAndLetsRequestsFinish(t *testing.T) {
	namespace := newNamespace(t)
	server := startLoneServer(t, namespace, "--storage=embedded", "--data-dir="+filepath.Join(t.TempDir(), "data"), "--shutdown-delay-duration="+shutdownDelay.String())
	slow := startSlowCreate(t, server.config, namespace)

	stopped := make(chan error, 1)
	go func() { stopped <- server.process.Stop() }()
	server.waitForHealth(t, "/readyz", http.StatusInternalServerError)
	// It reports that before it rejects any request.
	if _, err := server.elastiServices(t, namespace).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a server that is about to stop rejects a request: %v", err)
	}
	eventually(t, "no connection is accepted any more", func(ctx context.Context) string {
		if _, _, err := server.health(ctx, "/readyz"); err == nil {
			return "a connection is still accepted"
		}
		return ""
	})
	if code := slow.finish(t); code != http.StatusCreated {
		t.Errorf("the request that was in flight gets %d, want 201", code)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if code := server.process.ExitCode(); code != 0 {
		t.Errorf("the exit code is %d, want 0", code)
	}
}

// A client whose connection was accepted just before SIGTERM, and that keeps it open,
// does not delay the end of the server.
func TestAConnectionThatComesLateDoesNotHoldUpTheEnd(t *testing.T) {
	namespace := newNamespace(t)
	server := startLoneServer(t, namespace, "--storage=embedded", "--data-dir="+filepath.Join(t.TempDir(), "data"))
	address := strings.TrimPrefix(server.config.Host, "https://")
	accepted, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	// Connections are accepted in the order of arrival.
	if _, _, err := server.health(t.Context(), "/readyz"); err != nil {
		t.Fatal(err)
	}

	stopped := make(chan error, 1)
	go func() { stopped <- server.process.Stop() }()
	eventually(t, "no connection is accepted any more", func(ctx context.Context) string {
		if _, _, err := server.health(ctx, "/readyz"); err == nil {
			return "a connection is still accepted"
		}
		return ""
	})
	client := tls.Client(accepted, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http2.NextProtoTLS}})
	if err := client.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(client, client)
	if err := errors.Join(framer.WriteSettings(), framer.WriteSettingsAck()); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
