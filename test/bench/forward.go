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
	"math"
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
	// forwardRounds is how often each proxy is measured for the key figures;
	// they take turns. otherRounds is how often for other numbers of connections.
	forwardRounds = 5
	otherRounds   = 2
	// forwardSeconds is how long each is measured at a time.
	forwardSeconds = 4
	// http2Requests is how many requests a client has at once on one connection
	// in HTTP/2.
	http2Requests = 8
	// streams is how many connections carry streamBytes each when raw bytes
	// are measured.
	streams     = 4
	streamBytes = 512 << 20
	// httpPort, streamPort, http2Port and grpcPort are the ports of the Service, and
	// applicationHTTP2Port and applicationGRPCPort are where the application speaks
	// HTTP/2 and gRPC.
	httpPort, streamPort, http2Port, grpcPort = 80, 81, 82, 83
	applicationHTTP2Port, applicationGRPCPort = 8081, 8083
	// proxiedName is the application's.
	proxiedName = "proxied"
	// checkTimeout bounds one request that checks which server responds.
	checkTimeout = 5 * time.Second
	// openFiles is how many files clients and peers may open: two for each connection.
	openFiles = 16384
)

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
	return errors.Join(b.forwardHTTP(ctx, proxied, directory), b.forwardHTTP2(ctx, proxied, directory), b.forwardBytes(ctx, proxied, directory))
}

// proxied are the addresses of an application and of a resolver in front of it.
type proxied struct {
	// pod speaks HTTP/1.1, podHTTP2 HTTP/2 too, podGRPC nothing but gRPC.
	pod, podHTTP2, podGRPC                                    string
	resolverHTTP, resolverStream, resolverHTTP2, resolverGRPC string
	// place is that of the resolver.
	place place
}

// proxiedApplication creates an application that resolvers always forward to.
func (s *stage) proxiedApplication(ctx context.Context) (proxied, error) {
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{
		Name:      proxiedName,
		Replicas:  1,
		Arguments: []string{"-protocols"},
		ServicePorts: []corev1.ServicePort{
			{Name: "http", Port: httpPort, TargetPort: intstr.FromString("http")},
			{Name: "stream", Port: streamPort, TargetPort: intstr.FromString("http"), AppProtocol: ptr.To("tcp")},
			{Name: "http2", Port: http2Port, TargetPort: intstr.FromInt32(applicationHTTP2Port)},
			{Name: "grpc", Port: grpcPort, TargetPort: intstr.FromInt32(applicationGRPCPort)},
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
	addresses := proxied{
		pod:      pods[0].Status.PodIP + ":8080",
		podHTTP2: fmt.Sprintf("%s:%d", pods[0].Status.PodIP, applicationHTTP2Port),
		podGRPC:  fmt.Sprintf("%s:%d", pods[0].Status.PodIP, applicationGRPCPort),
	}
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
		case http2Port:
			addresses.resolverHTTP2 = address
		case grpcPort:
			addresses.resolverGRPC = address
		}
	}
	return addresses, nil
}

// contender is one proxy, or none, to be measured.
type contender struct {
	name, address string
}

// The names of the contenders.
const (
	direct          = "direct"
	resolver        = "resolver"
	nginxProxy      = "nginx"
	goProxy         = "net/http reverse proxy"
	haproxyProxy    = "HAProxy"
	haproxySplicing = "HAProxy that splices"
)

func (b *bench) forwardHTTP(ctx context.Context, proxied proxied, directory string) error {
	nginx, err := startNginx(ctx, proxied.place, directory, proxied.pod, proxied.podHTTP2)
	if err != nil {
		return err
	}
	defer nginx.stop()
	reverseProxy, err := startReverseProxy(ctx, proxied.place, reverseProxyPort, proxied.pod, false)
	if err != nil {
		return err
	}
	defer reverseProxy.stop()
	reverseProxyHTTP2, err := startReverseProxy(ctx, proxied.place, reverseProxyHTTP2Port, proxied.podHTTP2, true)
	if err != nil {
		return err
	}
	defer reverseProxyHTTP2.stop()
	for _, comparison := range []comparison{
		{
			what: "HTTP/1.1",
			key:  "forward_http1",
			contenders: []contender{
				{direct, proxied.pod},
				{resolver, proxied.resolverHTTP},
				{nginxProxy, proxied.place.listen(nginxPort)},
				{goProxy, reverseProxy.address},
			},
			keyConnections:   64,
			otherConnections: []int{16, 256, 2000},
			load:             loadHTTP1,
		},
		{
			what:  "h2c",
			key:   "forward_h2c",
			http2: true,
			contenders: []contender{
				{direct, proxied.podHTTP2},
				{resolver, proxied.resolverHTTP2},
				{nginxProxy, proxied.place.listen(nginxHTTP2Port)},
				{goProxy, reverseProxyHTTP2.address},
			},
			keyConnections:   16,
			otherConnections: []int{256},
			load:             loadHTTP2,
		},
	} {
		if err := b.compareProxies(ctx, comparison); err != nil {
			return fmt.Errorf("%s: %w", comparison.what, err)
		}
	}
	return nil
}

// comparison is what proxies are compared in.
type comparison struct {
	// what is for people, key for the names of the key figures.
	what, key string
	// contenders are the pod itself, the resolver, nginx and a bare reverse proxy.
	contenders []contender
	// http2 is what they speak, without TLS; otherwise it is HTTP/1.1.
	http2 bool
	// keyConnections are those of the key figures.
	keyConnections   int
	otherConnections []int
	load             func(ctx context.Context, address string, connections int) (loadResult, error)
}

// loadResult is the result of a load generator: requests a second, and a latency
// quantile in milliseconds.
type loadResult struct {
	rate, latency float64
	// part is the name of the quantile.
	part string
}

// compareProxies measures proxies over several numbers of connections.
func (b *bench) compareProxies(ctx context.Context, c comparison) error {
	if err := checkContenders(ctx, c.contenders, c.http2); err != nil {
		return err
	}
	measure := func(connections, rounds int) (map[string][]float64, error) {
		latencies, part := make(map[string][]float64), ""
		rates, err := takeTurns(c.contenders, rounds, func(one contender) (float64, error) {
			result, err := c.load(ctx, one.address, connections)
			latencies[one.name], part = append(latencies[one.name], result.latency), result.part
			return result.rate, err
		})
		if err != nil {
			return nil, fmt.Errorf("%d connections: %w", connections, err)
		}
		for _, one := range c.contenders {
			what := fmt.Sprintf("%s, %d kept connections: %s", c.what, connections, one.name)
			b.row(what, "requests/s", rates[one.name])
			b.row(what+", "+part, "ms", latencies[one.name])
		}
		return rates, nil
	}
	overNginx := func(rates map[string][]float64) float64 {
		return quantile(rates[resolver], 0.5) / quantile(rates[nginxProxy], 0.5)
	}
	smallest := math.Inf(1)
	for _, connections := range c.otherConnections {
		rates, err := measure(connections, otherRounds)
		if err != nil {
			return err
		}
		smallest = min(smallest, overNginx(rates))
	}
	rates, err := measure(c.keyConnections, forwardRounds)
	if err != nil {
		return err
	}
	b.set(c.key+"_ratio_nginx", overNginx(rates))
	b.set(c.key+"_min_ratio_nginx", min(smallest, overNginx(rates)))
	b.set(c.key+"_ratio_reverseproxy", quantile(rates[resolver], 0.5)/quantile(rates[goProxy], 0.5))
	return nil
}

func (b *bench) forwardBytes(ctx context.Context, proxied proxied, directory string) error {
	haproxy, err := startHAProxy(ctx, proxied.place, directory, proxied.pod)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	contenders := []contender{
		{direct, proxied.pod},
		{resolver, proxied.resolverStream},
		{haproxyProxy, proxied.place.listen(haproxyPort)},
		{haproxySplicing, proxied.place.listen(haproxySplicePort)},
	}
	if err := checkContenders(ctx, contenders, false); err != nil {
		return err
	}
	rates, err := takeTurns(contenders, forwardRounds, func(c contender) (float64, error) { return bytesPerSecond(ctx, c.address) })
	if err != nil {
		return err
	}
	for _, c := range contenders {
		b.row(fmt.Sprintf("bytes, %d connections: %s", streams, c.name), "MiB/s", rates[c.name])
	}
	b.set("forward_tcp_ratio_haproxy", quantile(rates[resolver], 0.5)/quantile(rates[haproxyProxy], 0.5))
	b.set("forward_tcp_ratio_haproxy_splice", quantile(rates[resolver], 0.5)/quantile(rates[haproxySplicing], 0.5))
	return nil
}

// checkContenders returns an error unless the application responds at every address,
// so that no other server is measured in its place.
func checkContenders(ctx context.Context, contenders []contender, http2 bool) error {
	for _, contender := range contenders {
		if err := checkApplication(ctx, contender.address, http2); err != nil {
			return fmt.Errorf("checking %s at %s: %w", contender.name, contender.address, err)
		}
	}
	return nil
}

// checkApplication sends one request, in HTTP/1.1 or in HTTP/2 without TLS, and expects
// a response of the proxied application.
func checkApplication(ctx context.Context, address string, http2 bool) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, DisableKeepAlives: true}
	got, err := cluster.GetWith(ctx, &http.Client{Transport: transport}, "http://"+address+"/")
	if err != nil {
		return err
	}
	return got.FromApplication(proxiedName)
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

	h2loadRate   = regexp.MustCompile(`finished in .*, ([0-9.]+) req/s`)
	h2loadResult = regexp.MustCompile(`requests: .* ([0-9]+) succeeded, ([0-9]+) failed, ([0-9]+) errored, ([0-9]+) timeout`)
	h2loadMost   = regexp.MustCompile(`time for request: +\S+ +([0-9.]+)(us|ms|s)`)
)

// loadHTTP1 runs wrk, from Debian's package.
func loadHTTP1(ctx context.Context, address string, connections int) (loadResult, error) {
	output, err := runLoad(ctx, "wrk", "--threads=1", fmt.Sprint("--connections=", connections), "--latency", "--timeout=10s",
		fmt.Sprintf("--duration=%ds", forwardSeconds), "http://"+address+"/")
	if err != nil {
		return loadResult{}, err
	}
	if problem := wrkErrors.FindString(output); problem != "" {
		return loadResult{}, fmt.Errorf("wrk: %s", problem)
	}
	return parseLoad(output, wrkRate, wrk99, "99 % of requests within")
}

// loadHTTP2 runs h2load, from Debian's package nghttp2-client.
func loadHTTP2(ctx context.Context, address string, connections int) (loadResult, error) {
	return h2load(ctx, "--threads=1", fmt.Sprint("--clients=", connections), fmt.Sprint("--max-concurrent-streams=", http2Requests),
		fmt.Sprint("--duration=", forwardSeconds), "http://"+address+"/")
}

func h2load(ctx context.Context, arguments ...string) (loadResult, error) {
	output, err := runLoad(ctx, "h2load", arguments...)
	if err != nil {
		return loadResult{}, err
	}
	if err := h2loadSucceeded(output); err != nil {
		return loadResult{}, err
	}
	return parseLoad(output, h2loadRate, h2loadMost, "all requests within")
}

// h2loadSucceeded returns an error unless all requests succeeded.
func h2loadSucceeded(output string) error {
	result := h2loadResult.FindStringSubmatch(output)
	if result == nil || result[1] == "0" || result[2] != "0" || result[3] != "0" || result[4] != "0" {
		return fmt.Errorf("h2load: not all requests succeeded: %s", output)
	}
	return nil
}

// runLoad runs a source of load that may open many connections.
func runLoad(ctx context.Context, program string, arguments ...string) (string, error) {
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, openFiles)
	output, err := exec.CommandContext(ctx, "sh", append([]string{"-c", script, program}, arguments...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, output)
	}
	return string(output), nil
}

func parseLoad(output string, ratePattern, latencyPattern *regexp.Regexp, part string) (loadResult, error) {
	rate, latency := ratePattern.FindStringSubmatch(output), latencyPattern.FindStringSubmatch(output)
	if rate == nil || latency == nil {
		return loadResult{}, fmt.Errorf("the source of the load printed no rate or no latency: %s", output)
	}
	perSecond, err := strconv.ParseFloat(rate[1], 64)
	if err != nil {
		return loadResult{}, fmt.Errorf("the rate of the load: %w", err)
	}
	within, err := time.ParseDuration(latency[1] + latency[2])
	if err != nil {
		return loadResult{}, fmt.Errorf("the latency of the load: %w", err)
	}
	return loadResult{rate: perSecond, latency: milliseconds(within), part: part}, nil
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
	got := cluster.Response{Status: response.StatusCode, Header: response.Header}
	if err := got.FromApplication(proxiedName); err != nil {
		return err
	}
	received, err := io.Copy(io.Discard, response.Body)
	if err == nil && received != streamBytes {
		err = fmt.Errorf("got %d bytes of %d", received, int64(streamBytes))
	}
	return err
}
