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
	// forwardSeconds is how long each is measured at a time, forwardConnections
	// over how many connections.
	forwardSeconds     = 5
	forwardConnections = 64
	// streams is how many connections carry streamBytes each when raw bytes
	// are measured.
	streams     = 4
	streamBytes = 512 << 20
	// httpPort and streamPort are the ports of the Service.
	httpPort, streamPort = 80, 81
)

// forward compares the resolver with other proxies to the same pod: nginx and
// a bare net/http reverse proxy for HTTP, HAProxy for bytes. The clients are on
// this machine and connect to the proxies directly. The resolver runs in its
// pod, the others outside of one.
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
	resolvers, err := s.ResolverAddresses(ctx)
	if err != nil {
		return proxied{}, err
	}
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return proxied{}, err
	}
	addresses := proxied{pod: pods[0].Status.PodIP + ":8080"}
	for _, port := range elastiService.Status.ProxyPorts {
		address := fmt.Sprintf("%s:%d", resolvers[0], port.ProxyPort)
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
	nginx, err := startNginx(ctx, directory, proxied.pod)
	if err != nil {
		return err
	}
	defer nginx.stop()
	reverseProxy, err := startReverseProxy(ctx, proxied.pod)
	if err != nil {
		return err
	}
	defer reverseProxy.stop()

	rates, err := takeTurns([]contender{
		{"direct", proxied.pod},
		{"resolver", proxied.resolverHTTP},
		{"nginx", nginx.address},
		{"net/http reverse proxy", reverseProxy.address},
	}, func(address string) (float64, error) { return requestsPerSecond(ctx, address) })
	if err != nil {
		return err
	}
	for _, name := range []string{"direct", "resolver", "nginx", "net/http reverse proxy"} {
		b.row("HTTP/1.1, 64 kept connections: "+name, "requests/s", rates[name])
	}
	b.set("forward_http1_ratio_nginx", quantile(rates["resolver"], 0.5)/quantile(rates["nginx"], 0.5))
	b.set("forward_http1_ratio_reverseproxy", quantile(rates["resolver"], 0.5)/quantile(rates["net/http reverse proxy"], 0.5))
	return nil
}

func (b *bench) forwardBytes(ctx context.Context, proxied proxied, directory string) error {
	haproxy, err := startHAProxy(ctx, directory, proxied.pod)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	rates, err := takeTurns([]contender{
		{"direct", proxied.pod},
		{"resolver", proxied.resolverStream},
		{"HAProxy", haproxy.address},
	}, func(address string) (float64, error) { return bytesPerSecond(ctx, address) })
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
func takeTurns(contenders []contender, measure func(address string) (float64, error)) (map[string][]float64, error) {
	rates := make(map[string][]float64)
	for range forwardRounds {
		for _, contender := range contenders {
			rate, err := measure(contender.address)
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
	wrkErrors = regexp.MustCompile(`(Socket errors|Non-2xx).*`)
)

// requestsPerSecond runs wrk, from Debian's package.
func requestsPerSecond(ctx context.Context, address string) (float64, error) {
	wrk := exec.CommandContext(ctx, "wrk", "--threads=1", fmt.Sprint("--connections=", forwardConnections),
		fmt.Sprintf("--duration=%ds", forwardSeconds), "http://"+address+"/")
	output, err := wrk.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("wrk: %w: %s", err, output)
	}
	if problem := wrkErrors.Find(output); problem != nil {
		return 0, fmt.Errorf("wrk: %s", problem)
	}
	match := wrkRate.FindSubmatch(output)
	if match == nil {
		return 0, fmt.Errorf("wrk printed no rate: %s", output)
	}
	return strconv.ParseFloat(string(match[1]), 64)
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
