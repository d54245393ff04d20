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
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// forwardRounds is how often each proxy is measured; they take turns.
	forwardRounds = 5
	// forwardSeconds is how long each is measured at a time, keyConnections over
	// how many connections for the key figures.
	forwardSeconds = 4
	keyConnections = 64
	// otherRounds is how often they are measured over other numbers of connections.
	otherRounds = 2
	// streams is how many connections carry streamBytes each when raw bytes
	// are measured.
	streams     = 4
	streamBytes = 512 << 20
	// httpPort and streamPort are the ports of the Service.
	httpPort, streamPort = 80, 81
)

// otherConnections are the other numbers of connections.
var otherConnections = []int{16, 256, 2000}

// forward compares the resolver with other proxies to the same pod: nginx and
// a bare net/http reverse proxy for HTTP, HAProxy for bytes. The clients are on
// this machine and connect to the proxies directly. All proxies have the network
// and the share of the processor of a resolver's pod.
func forward(ctx context.Context, b *bench) error {
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	proxied, err := stage.proxiedApplication(ctx)
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "elasti-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	// nginx's workers have another user.
	if err := os.Chmod(directory, 0o755); err != nil {
		return err
	}
	return errors.Join(b.forwardHTTP(ctx, proxied, directory), b.forwardBytes(ctx, proxied, directory))
}

// proxied are the addresses of an application and of a resolver in front of it.
type proxied struct {
	pod, resolverHTTP, resolverStream string
	// place is that of the resolver.
	place place
}

// proxiedApplication creates an application that resolvers always forward to.
func (s *stage) proxiedApplication(ctx context.Context) (proxied, error) {
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
		Replicas: 1,
		ServicePorts: []corev1.ServicePort{
			{Name: "http", Port: httpPort, TargetPort: intstr.FromString("http")},
			{Name: "stream", Port: streamPort, TargetPort: intstr.FromString("http"), AppProtocol: ptr.To("tcp")},
		},
		Spec: func(spec *v1alpha1.ElastiServiceSpec) { spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways} },
	})
	if err := errors.Join(app.Create(ctx), app.AwaitMode(ctx, v1alpha1.ModeProxy)); err != nil {
		return proxied{}, err
	}
	pods, err := app.AwaitPods(ctx, "the pod is ready", func(pods []*corev1.Pod) bool { return len(pods) == 1 && cluster.PodIsReady(pods[0]) })
	if err != nil {
		return proxied{}, err
	}
	resolvers, err := s.SystemPods(ctx, cluster.ResolverSelector)
	if err != nil {
		return proxied{}, err
	}
	if len(resolvers) == 0 {
		return proxied{}, errors.New("there is no resolver")
	}
	processes, err := cluster.ContainerProcesses(&resolvers[0])
	if err != nil {
		return proxied{}, err
	}
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return proxied{}, err
	}
	addresses := proxied{pod: pods[0].Status.PodIP + ":8080"}
	if addresses.place, err = placeOf(processes[0], resolvers[0].Status.PodIP); err != nil {
		return proxied{}, err
	}
	for _, port := range elastiService.Status.ProxyPorts {
		address := fmt.Sprintf("%s:%d", resolvers[0].Status.PodIP, port.ProxyPort)
		switch port.Port {
		case httpPort:
			addresses.resolverHTTP = address
		case streamPort:
			addresses.resolverStream = address
		}
	}
	return addresses, nil
}

// contender is one proxy, or none, to be measured.
type contender struct {
	name, address string
}

func (b *bench) forwardHTTP(ctx context.Context, proxied proxied, directory string) error {
	nginx, err := startNginx(ctx, proxied.place, directory, proxied.pod)
	if err != nil {
		return err
	}
	defer nginx.stop()
	reverseProxy, err := startReverseProxy(ctx, proxied.place, proxied.pod)
	if err != nil {
		return err
	}
	defer reverseProxy.stop()

	contenders := []contender{
		{"direct", proxied.pod},
		{"resolver", proxied.resolverHTTP},
		{"nginx", nginx.address},
		{"net/http reverse proxy", reverseProxy.address},
	}
	measure := func(connections, rounds int) (map[string][]float64, error) {
		latencies := make(map[string][]float64)
		rates, err := takeTurns(contenders, rounds, func(c contender) (float64, error) {
			result, err := requestsPerSecond(ctx, c.address, connections)
			latencies[c.name] = append(latencies[c.name], result.p99)
			return result.rate, err
		})
		for _, c := range contenders {
			what := fmt.Sprintf("HTTP/1.1, %d kept connections: %s", connections, c.name)
			b.row(what, "requests/s", rates[c.name])
			b.row(what+", 99 % of requests within", "ms", latencies[c.name])
		}
		return rates, err
	}
	for _, connections := range otherConnections {
		if _, err := measure(connections, otherRounds); err != nil {
			return err
		}
	}
	rates, err := measure(keyConnections, forwardRounds)
	if err != nil {
		return err
	}
	b.set("forward_http1_ratio_nginx", quantile(rates["resolver"], 0.5)/quantile(rates["nginx"], 0.5))
	b.set("forward_http1_ratio_reverseproxy", quantile(rates["resolver"], 0.5)/quantile(rates["net/http reverse proxy"], 0.5))
	return nil
}

func (b *bench) forwardBytes(ctx context.Context, proxied proxied, directory string) error {
	haproxy, err := startHAProxy(ctx, proxied.place, directory, proxied.pod)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	rates, err := takeTurns([]contender{
		{"direct", proxied.pod},
		{"resolver", proxied.resolverStream},
		{"HAProxy", haproxy.address},
	}, forwardRounds, func(c contender) (float64, error) { return bytesPerSecond(ctx, c.address) })
	if err != nil {
		return err
	}
	for _, name := range []string{"direct", "resolver", "HAProxy"} {
		b.row("bytes, 4 connections: "+name, "MiB/s", rates[name])
	}
	b.set("forward_tcp_ratio_haproxy", quantile(rates["resolver"], 0.5)/quantile(rates["HAProxy"], 0.5))
	return nil
}

// takeTurns measures every contender once in each round.
func takeTurns(contenders []contender, rounds int, measure func(contender) (float64, error)) (map[string][]float64, error) {
	rates := make(map[string][]float64)
	for range rounds {
		for _, contender := range contenders {
			rate, err := measure(contender)
			if err != nil {
				return nil, fmt.Errorf("measuring %s at %s: %w", contender.name, contender.address, err)
			}
			rates[contender.name] = append(rates[contender.name], rate)
		}
	}
	return rates, nil
}

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrk99     = regexp.MustCompile(`99%\s+([0-9.]+)(us|ms|s)`)
	wrkErrors = regexp.MustCompile(`(Socket errors|Non-2xx).*`)
)

// wrkResult is what wrk measured: requests a second, and within how many
// milliseconds 99 % of them were answered.
type wrkResult struct {
	rate, p99 float64
}

// requestsPerSecond runs wrk, from Debian's package.
func requestsPerSecond(ctx context.Context, address string, connections int) (wrkResult, error) {
	wrk := exec.CommandContext(ctx, "wrk", "--threads=1", fmt.Sprint("--connections=", connections), "--latency", "--timeout=10s",
		fmt.Sprintf("--duration=%ds", forwardSeconds), "http://"+address+"/")
	output, err := wrk.CombinedOutput()
	if err != nil {
		return wrkResult{}, fmt.Errorf("wrk: %w: %s", err, output)
	}
	if problem := wrkErrors.Find(output); problem != nil {
		return wrkResult{}, fmt.Errorf("wrk: %s", problem)
	}
	return parseWrk(string(output))
}

func parseWrk(output string) (wrkResult, error) {
	rate, latency := wrkRate.FindStringSubmatch(output), wrk99.FindStringSubmatch(output)
	if rate == nil || latency == nil {
		return wrkResult{}, fmt.Errorf("wrk printed no rate or no latency: %s", output)
	}
	perSecond, err := strconv.ParseFloat(rate[1], 64)
	if err != nil {
		return wrkResult{}, fmt.Errorf("the rate that wrk printed: %w", err)
	}
	within, err := time.ParseDuration(latency[1] + latency[2])
	if err != nil {
		return wrkResult{}, fmt.Errorf("the latency that wrk printed: %w", err)
	}
	return wrkResult{rate: perSecond, p99: milliseconds(within)}, nil
}

// bytesPerSecond downloads over several connections at once and returns the
// sum, in MiB a second.
func bytesPerSecond(ctx context.Context, address string) (float64, error) {
	failures := make([]error, streams)
	var ended sync.WaitGroup
	start := time.Now()
	for i := range streams {
		ended.Go(func() { failures[i] = download(ctx, fmt.Sprintf("http://%s/bytes?count=%d", address, streamBytes)) })
	}
	ended.Wait()
	return streams * streamBytes / float64(1<<20) / time.Since(start).Seconds(), errors.Join(failures...)
}

func download(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ReadBufferSize: 256 << 10}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	received, err := io.Copy(io.Discard, response.Body)
	if err == nil && received != streamBytes {
		err = fmt.Errorf("got %d bytes of %d", received, int64(streamBytes))
	}
	return err
}
