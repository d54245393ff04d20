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

// Package prometheus tests prometheus triggers with a real Prometheus server,
// which hack/tools/debian.sh prometheus fetches.
//
// It knows nothing of what a trigger does to a target. Begin with
// TestQueriesSeeTheirOwnNamespace.
package prometheus

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

const (
	binaryPath = "../../../_output/tools/bin/prometheus"

	// uptimeWindow is shorter than the default, and longer than the time that
	// the query looks back.
	uptimeWindow = 4 * time.Second
	query        = `sum(rate(shop_requests_total[2s])) or vector(0)`

	queryTimeout = time.Minute
	pollInterval = 100 * time.Millisecond
)

// server is a Prometheus server that scrapes an application.
type server struct {
	binary    string
	directory string
	address   string
	// process is nil while the server is down.
	process *exec.Cmd
}

// newServer prepares a server that scrapes static targets, each in the form of
// an entry of static_configs.
func newServer(t *testing.T, targets ...string) *server {
	t.Helper()
	binary, err := exec.LookPath(binaryPath)
	if err != nil {
		t.Fatalf("there is no Prometheus server: run hack/tools/debian.sh prometheus: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{binary: binary, directory: t.TempDir(), address: listener.Addr().String()}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	config := "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs:\n- job_name: shop\n  static_configs:\n"
	for _, target := range targets {
		config += "  - " + target + "\n"
	}
	if err := os.WriteFile(filepath.Join(s.directory, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t) })
	return s
}

// start starts the server without any data.
func (s *server) start(t *testing.T) {
	t.Helper()
	data := filepath.Join(s.directory, "data")
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(s.binary, "--config.file="+filepath.Join(s.directory, "prometheus.yml"),
		"--storage.tsdb.path="+data, "--web.listen-address="+s.address)
	log, err := os.Create(filepath.Join(s.directory, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s.process = process
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	if s.process == nil {
		return
	}
	process := s.process
	s.process = nil
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := process.Wait(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.directory, "prometheus.log"))
		t.Errorf("prometheus ended with %v\n%s", err, log)
	}
}

// application counts requests: one every 10 ms while busy is set. It cannot be
// scraped while broken is set.
type application struct {
	*httptest.Server
	busy, broken atomic.Bool
}

func newApplication(t *testing.T) *application {
	t.Helper()
	registry := client.NewRegistry()
	requests := client.NewCounter(client.CounterOpts{Name: "shop_requests_total", Help: "Number of requests."})
	registry.MustRegister(requests)
	metrics := promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	app := &application{}
	app.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if app.broken.Load() {
			http.NotFound(w, r)
			return
		}
		metrics.ServeHTTP(w, r)
	}))
	t.Cleanup(app.Close)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		wait.UntilWithContext(ctx, func(context.Context) {
			if app.busy.Load() {
				requests.Inc()
			}
		}, 10*time.Millisecond)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return app
}

// target is the application as a static target of Prometheus in a namespace.
func (a *application) target(namespace string) string {
	return fmt.Sprintf("{targets: [%q], labels: {namespace: %q}}", strings.TrimPrefix(a.URL, "http://"), namespace)
}

// With the label of namespaces, a query sees the series of its own namespace and
// none of another, in a real Prometheus too.
func TestQueriesSeeTheirOwnNamespace(t *testing.T) {
	idle, busy := newApplication(t), newApplication(t)
	busy.busy.Store(true)
	prometheus := newServer(t, idle.target("idle"), busy.target("busy"))
	prometheus.start(t)
	evaluator := evaluators.NewPrometheus(evaluators.PrometheusOptions{
		ServerAddress: "http://" + prometheus.address, UptimeWindow: uptimeWindow, NamespaceLabel: "namespace",
	})
	defer evaluator.CloseIdleConnections()
	for namespace, want := range map[string]evaluators.State{"idle": evaluators.Idle, "busy": evaluators.Active} {
		for _, query := range []string{
			query,
			`sum({__name__="shop_requests_total"} - {__name__="shop_requests_total"} offset 1s) or vector(0)`,
			`max_over_time(sum(rate(shop_requests_total[2s]))[2s:100ms]) or vector(0)`,
			`sum by () (rate(shop_requests_total[2s]) or on (job) rate(shop_requests_total{job="shop"}[2s]))`,
		} {
			subject := evaluators.Subject{
				ElastiService: &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}},
				Trigger: &v1alpha1.ScaleTrigger{Type: triggers.TypePrometheus, Metadata: &runtime.RawExtension{
					Raw: fmt.Appendf(nil, `{"query":%q,"threshold":1,"uptimeFilter":"job=\"shop\""}`, query),
				}},
			}
			var last evaluators.Result
			err := wait.PollUntilContextTimeout(t.Context(), pollInterval, queryTimeout, true, func(ctx context.Context) (bool, error) {
				result, err := evaluator.Evaluate(ctx, subject)
				last = result
				return result.State == want, err
			})
			if err != nil || last.State != want {
				t.Errorf("%s in the namespace %s: got %+v, %v, want %s", query, namespace, last, err, want)
			}
		}
	}
}

// A target that is used all along is never found idle, also while Prometheus
// is down, while it comes back without its data, and before it has new data.
func TestRestartOfPrometheusNeverLooksIdle(t *testing.T) {
	app := newApplication(t)
	app.busy.Store(true)
	prometheus := newServer(t, app.target(""))
	evaluator := evaluators.NewPrometheus(evaluators.PrometheusOptions{ServerAddress: "http://" + prometheus.address, UptimeWindow: uptimeWindow})
	defer evaluator.CloseIdleConnections()
	subject := evaluators.Subject{
		ElastiService: &v1alpha1.ElastiService{},
		Trigger: &v1alpha1.ScaleTrigger{Type: triggers.TypePrometheus, Metadata: &runtime.RawExtension{
			Raw: fmt.Appendf(nil, `{"query":%q,"threshold":1,"uptimeFilter":"job=\"shop\""}`, query),
		}},
	}
	// await evaluates until the state is the one that is wanted, and fails when
	// it is the other one before.
	await := func(want, never evaluators.State) {
		t.Helper()
		var last evaluators.Result
		err := wait.PollUntilContextTimeout(t.Context(), pollInterval, queryTimeout, true, func(ctx context.Context) (bool, error) {
			result, err := evaluator.Evaluate(ctx, subject)
			if err != nil {
				return false, err
			}
			if result.State == never {
				return false, fmt.Errorf("got %+v", result)
			}
			last = result
			return result.State == want, nil
		})
		if err != nil {
			t.Fatalf("waiting for %s: %v; the last result is %+v", want, err, last)
		}
	}

	prometheus.start(t)
	await(evaluators.Active, evaluators.Idle)

	app.busy.Store(false)
	await(evaluators.Idle, evaluators.Unknown)
	app.busy.Store(true)
	await(evaluators.Active, evaluators.Unknown)

	prometheus.stop(t)
	await(evaluators.Unknown, evaluators.Idle)
	prometheus.start(t)
	await(evaluators.Active, evaluators.Idle)

	app.broken.Store(true)
	await(evaluators.Unknown, evaluators.Idle)
}
