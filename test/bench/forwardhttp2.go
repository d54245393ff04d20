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
	"net"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
)

const (
	// largeBytes is the body of the one stream that is measured, largeWindow how
	// many bits the windows for it have.
	largeBytes  = 1 << 30
	largeWindow = 30
	// grpcConnections is how many connections make calls, http2Requests at once on
	// each of them.
	grpcConnections = 16
	// The ports of the peers, in the network of the pod that they are placed in. nghttpx
	// needs one only: it distinguishes calls by their path.
	haproxyGRPCPort, haproxyHTTP2Port = 8907, 8908
	nghttpxPort                       = 8909
	// unaryMethod is what is called, with an empty message.
	unaryMethod = "/grpc.testing.TestService/UnaryCall"
)

// The names of the contenders that speak HTTP/2 on both sides.
const (
	nghttpxProxy = "nghttpx"
	haproxyHTTP2 = "HAProxy in HTTP/2"
)

// haproxyHTTP2Configuration has HAProxy speak HTTP/2 without TLS on both sides,
// with connections to the application that are kept and windows that do not limit.
const haproxyHTTP2Configuration = `global
  maxconn 4096
  tune.h2.initial-window-size 16777216
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen calls
  bind %[1]s proto h2
  server pod %[2]s proto h2
listen application
  bind %[3]s proto h2
  server pod %[4]s proto h2
`

// startHAProxyHTTP2 starts Debian's HAProxy for HTTP/2 on both sides.
func startHAProxyHTTP2(ctx context.Context, proxied proxied, directory string) (*peer, error) {
	at := proxied.place
	file := filepath.Join(directory, "haproxy-http2.cfg")
	configuration := fmt.Appendf(nil, haproxyHTTP2Configuration,
		at.listen(haproxyGRPCPort), proxied.podGRPC, at.listen(haproxyHTTP2Port), proxied.podHTTP2)
	if err := os.WriteFile(file, configuration, 0o644); err != nil {
		return nil, err
	}
	return startPeer(ctx, at.listen(haproxyHTTP2Port), true, at.command("haproxy", "-db", "-q", "-f", file))
}

// startNghttpx starts Debian's nghttpx, which has HTTP/2 from the library that curl
// has it from.
func startNghttpx(ctx context.Context, proxied proxied) (*peer, error) {
	backend := func(pod, paths string) (string, error) {
		host, port, err := net.SplitHostPort(pod)
		return fmt.Sprintf("--backend=%s,%s;%s;proto=h2", host, port, paths), err
	}
	calls, callsErr := backend(proxied.podGRPC, path.Dir(unaryMethod)+"/")
	other, otherErr := backend(proxied.podHTTP2, "")
	if err := errors.Join(callsErr, otherErr); err != nil {
		return nil, err
	}
	address := proxied.place.listen(nghttpxPort)
	return startPeer(ctx, address, true, proxied.place.command("nghttpx", "--conf=/dev/null", "--log-level=ERROR",
		"--errorlog-file=/dev/stderr", "--accesslog-file=/dev/null", fmt.Sprint("--workers=", runtime.NumCPU()),
		"--frontend-http2-window-size=16777216", "--frontend-http2-connection-window-size=16777216",
		"--backend-http2-window-size=16777216", "--backend-http2-connection-window-size=16777216",
		fmt.Sprintf("--frontend=%s,%d;no-tls", proxied.place.address, nghttpxPort), calls, other))
}

// forwardHTTP2 compares the resolver with other proxies that speak HTTP/2 without
// TLS on both sides: unary gRPC calls, and one stream of a large body. The key
// figure is the smaller of both ratios.
func (b *bench) forwardHTTP2(ctx context.Context, proxied proxied, directory string) error {
	nghttpx, err := startNghttpx(ctx, proxied)
	if err != nil {
		return err
	}
	defer nghttpx.stop()
	haproxy, err := startHAProxyHTTP2(ctx, proxied, directory)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	message := filepath.Join(directory, "message")
	// Not compressed, and of no bytes.
	if err := os.WriteFile(message, make([]byte, 5), 0o644); err != nil {
		return err
	}
	calls, err := takeTurns([]contender{
		{direct, proxied.podGRPC},
		{resolver, proxied.resolverGRPC},
		{nghttpxProxy, nghttpx.address},
		{haproxyHTTP2, proxied.place.listen(haproxyGRPCPort)},
	}, forwardRounds, func(c contender) (float64, error) {
		result, err := loadGRPC(ctx, c.address, message)
		return result.rate, err
	})
	if err != nil {
		return err
	}
	contenders := []contender{
		{direct, proxied.podHTTP2},
		{resolver, proxied.resolverHTTP2},
		{nghttpxProxy, nghttpx.address},
		{haproxyHTTP2, haproxy.address},
	}
	if err := checkContenders(ctx, contenders, true); err != nil {
		return err
	}
	bytes, err := takeTurns(contenders, forwardRounds, func(c contender) (float64, error) { return loadStream(ctx, c.address) })
	if err != nil {
		return err
	}
	for _, c := range contenders {
		b.row(fmt.Sprintf("unary gRPC calls, %d connections: %s", grpcConnections, c.name), "calls/s", calls[c.name])
		b.row("h2c, one stream: "+c.name, "MiB/s", bytes[c.name])
	}
	for key, peer := range map[string]string{"forward_h2c_ratio_nghttpx": nghttpxProxy, "forward_h2c_ratio_haproxy": haproxyHTTP2} {
		over := func(rates map[string][]float64) float64 {
			return quantile(rates[resolver], 0.5) / quantile(rates[peer], 0.5)
		}
		b.set(key, min(over(calls), over(bytes)))
	}
	return nil
}

// loadGRPC has h2load, from Debian's package nghttp2-client, make unary calls.
func loadGRPC(ctx context.Context, address, message string) (loadResult, error) {
	return h2load(ctx, "--threads=1", fmt.Sprint("--clients=", grpcConnections), fmt.Sprint("--max-concurrent-streams=", http2Requests),
		fmt.Sprint("--duration=", forwardSeconds), "--data="+message, "--header=content-type: application/grpc", "--header=te: trailers",
		"http://"+address+unaryMethod)
}

var h2loadTraffic = regexp.MustCompile(`req/s, ([0-9.]+)([KMG]?)B/s`)

// loadStream has h2load read one large body, and returns how many MiB a second
// that were.
func loadStream(ctx context.Context, address string) (float64, error) {
	output, err := runLoad(ctx, "h2load", "--threads=1", "--clients=1", "--requests=1", fmt.Sprint("--window-bits=", largeWindow),
		fmt.Sprint("--connection-window-bits=", largeWindow), fmt.Sprintf("http://%s/bytes?count=%d", address, largeBytes))
	if err != nil {
		return 0, err
	}
	if err := h2loadSucceeded(output); err != nil {
		return 0, err
	}
	return parseTraffic(output)
}

// parseTraffic returns how many MiB a second h2load says that it read.
func parseTraffic(output string) (float64, error) {
	found := h2loadTraffic.FindStringSubmatch(output)
	if found == nil {
		return 0, fmt.Errorf("h2load printed no traffic: %s", output)
	}
	rate, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		return 0, fmt.Errorf("the traffic of h2load: %w", err)
	}
	return rate * map[string]float64{"": 1.0 / (1 << 20), "K": 1.0 / (1 << 10), "M": 1, "G": 1 << 10}[found[2]], nil
}
