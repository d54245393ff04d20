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
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// trafficMetrics counts requests, as an ingress does. Safe for concurrent use.
type trafficMetrics struct {
	registry *client.Registry
	server   *httptest.Server

	mu   sync.Mutex
	sent map[string]*cluster.Traffic
}

func newTrafficMetrics() *trafficMetrics {
	registry := client.NewRegistry()
	return &trafficMetrics{
		registry: registry,
		server:   httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})),
		sent:     map[string]*cluster.Traffic{},
	}
}

func (m *trafficMetrics) address() string { return strings.TrimPrefix(m.server.URL, "http://") }
func (m *trafficMetrics) close()          { m.server.Close() }

// add counts the requests of a traffic from now on.
func (m *trafficMetrics) add(application string, sent *cluster.Traffic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[application] = sent
	m.registry.MustRegister(client.NewCounterFunc(client.CounterOpts{
		Name: "soak_requests_total", Help: "Number of requests.", ConstLabels: client.Labels{"application": application},
	}, func() float64 {
		total, _, _ := sent.Outcome()
		return float64(total)
	}))
}

func (m *trafficMetrics) outcome(application string) (total, failed int, failures []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent[application].Outcome()
}

// prometheus is a Prometheus server on this machine, which scrapes the metrics
// of the traffic. For use by one goroutine.
type prometheus struct {
	binary, directory, address string
	// process is nil while it is down.
	process *exec.Cmd
}

func newPrometheus(binary, host, scraped string) (*prometheus, error) {
	directory, err := os.MkdirTemp("", "elasti-soak-")
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("looking for a port of %s: %w", host, err)
	}
	p := &prometheus{binary: binary, directory: directory, address: listener.Addr().String()}
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: soak\n  static_configs:\n  - targets: [%q]\n", scraped)
	return p, errors.Join(listener.Close(), os.WriteFile(filepath.Join(directory, "prometheus.yml"), []byte(config), 0o600))
}

func (p *prometheus) start() error {
	process := exec.Command(p.binary, "--config.file="+filepath.Join(p.directory, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(p.directory, "data"), "--web.listen-address="+p.address)
	log, err := os.OpenFile(filepath.Join(p.directory, "prometheus.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		return fmt.Errorf("starting Prometheus: %w", err)
	}
	p.process = process
	return nil
}

// restart kills the server and starts it again, with or without its data.
func (p *prometheus) restart(withoutData bool) error {
	p.kill()
	if withoutData {
		if err := os.RemoveAll(filepath.Join(p.directory, "data")); err != nil {
			return err
		}
	}
	return p.start()
}

func (p *prometheus) kill() {
	if p.process == nil {
		return
	}
	_ = p.process.Process.Signal(syscall.SIGKILL)
	_ = p.process.Wait()
	p.process = nil
}

func (p *prometheus) remove() {
	p.kill()
	_ = os.RemoveAll(p.directory)
}
