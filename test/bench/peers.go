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
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// peerStartTimeout bounds the start of a peer, peerStopTimeout its end.
	peerStartTimeout = 10 * time.Second
	peerStopTimeout  = 5 * time.Second
	// peerIdleConnections is how many connections to the pod a peer may keep;
	// more than there are clients.
	peerIdleConnections = 4096
	// The ports of the peers, in the network of the pod that they are placed in.
	nginxPort, nginxHTTP2Port               = 8901, 8904
	reverseProxyPort, reverseProxyHTTP2Port = 8902, 8905
	haproxyPort, haproxySplicePort          = 8903, 8906
)

// place is where peers run: in the network and with the share of the processor
// that the container of a resolver has, as if they ran in its pod instead of it.
type place struct {
	// process is one of the container's.
	process int
	// address is that of the pod.
	address string
	// group is the directory of the control group that shares the processor out.
	group string
}

// placeOf returns the place that a process of a pod has.
func placeOf(process int, address string) (place, error) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), "cgroup"))
	if err != nil {
		return place{}, err
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root := "/sys/fs/cgroup"
		switch controllers := strings.Split(fields[1], ","); {
		case slices.Contains(controllers, "cpu"):
			root += "/cpu"
		case fields[0] != "0":
			continue
		}
		group := filepath.Join(root, fields[2])
		if _, err := os.Stat(filepath.Join(group, "cgroup.procs")); err == nil {
			return place{process: process, address: address, group: group}, nil
		}
	}
	return place{}, fmt.Errorf("process %d is in no control group that shares the processor out", process)
}

// command returns a command that runs a program there.
func (p place) command(program string, arguments ...string) *exec.Cmd {
	script := fmt.Sprintf(`echo $$ >%q && exec nsenter --net=/proc/%d/ns/net -- "$@"`, filepath.Join(p.group, "cgroup.procs"), p.process)
	return exec.Command("sh", append([]string{"-c", script, "sh", program}, arguments...)...)
}

// listen returns an address there.
func (p place) listen(port int) string { return net.JoinHostPort(p.address, strconv.Itoa(port)) }

// nginxConfiguration configures nginx for fast forwarding: connections to the
// application are kept, and nothing is logged. HTTP/2 requests are forwarded in
// HTTP/1.1, because nginx cannot forward them in HTTP/2.
const nginxConfiguration = `daemon off;
worker_processes auto;
worker_rlimit_nofile %[6]d;
pid %[1]s/nginx.pid;
error_log stderr warn;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_requests 1000000;
  proxy_http_version 1.1;
  proxy_set_header Connection "";
  proxy_set_header Host $host;
  upstream application { server %[3]s; keepalive %[7]d; keepalive_requests 1000000; }
  upstream application_http2 { server %[5]s; keepalive %[7]d; keepalive_requests 1000000; }
  server {
    listen %[2]s;
    location / { proxy_pass http://application; }
  }
  server {
    listen %[4]s http2;
    location / { proxy_pass http://application_http2; }
  }
}
`

// haproxyConfiguration has HAProxy forward bytes as it does by default, and by
// letting the kernel move them.
const haproxyConfiguration = `global
  maxconn 4096
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen application
  bind %[1]s
  server pod %[2]s
listen application-splicing
  bind %[3]s
  option splice-auto
  server pod %[2]s
`

// peer is another proxy in front of the same pod, a process on this machine.
type peer struct {
	// address is where it listens.
	address string
	process *exec.Cmd
	ended   chan error
}

// startNginx starts Debian's nginx with its files in the directory.
func startNginx(ctx context.Context, at place, directory, target, targetHTTP2 string) (*peer, error) {
	address := at.listen(nginxPort)
	path := filepath.Join(directory, "nginx.conf")
	if err := os.WriteFile(path, fmt.Appendf(nil, nginxConfiguration, directory, address, target,
		at.listen(nginxHTTP2Port), targetHTTP2, openFiles, peerIdleConnections), 0o644); err != nil {
		return nil, err
	}
	return startPeer(ctx, address, false, at.command("nginx", "-c", path, "-p", directory, "-e", "stderr"))
}

// startHAProxy starts Debian's HAProxy, which forwards bytes.
func startHAProxy(ctx context.Context, at place, directory, target string) (*peer, error) {
	address := at.listen(haproxyPort)
	path := filepath.Join(directory, "haproxy.cfg")
	if err := os.WriteFile(path, fmt.Appendf(nil, haproxyConfiguration, address, target, at.listen(haproxySplicePort)), 0o644); err != nil {
		return nil, err
	}
	return startPeer(ctx, address, false, at.command("haproxy", "-db", "-q", "-f", path))
}

// startReverseProxy starts this program as a bare net/http reverse proxy.
func startReverseProxy(ctx context.Context, at place, port int, target string, http2 bool) (*peer, error) {
	address := at.listen(port)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return startPeer(ctx, address, http2, at.command(self, fmt.Sprint("-http2=", http2), "-reverse-proxy", address+","+target))
}

// serveReverseProxy forwards to the target until the process is ended, in
// HTTP/1.1 or in HTTP/2 on both sides.
func serveReverseProxy(address, target string, http2 bool) error {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	// The source of the load cuts off the requests that are under way when its time is over.
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: peerIdleConnections, DisableCompression: true, Protocols: protocols}
	return (&http.Server{Addr: address, Handler: proxy, Protocols: protocols}).ListenAndServe()
}

// startPeer starts the process and waits until the application responds through
// it, in HTTP/1.1 or in HTTP/2 without TLS.
func startPeer(ctx context.Context, address string, http2 bool, process *exec.Cmd) (*peer, error) {
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", process.Path, err)
	}
	p := &peer{address: address, process: process, ended: make(chan error, 1)}
	go func() { p.ended <- process.Wait() }()
	var last error
	err := wait.PollUntilContextTimeout(ctx, apiPollInterval, peerStartTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-p.ended:
			p.ended <- err
			return false, fmt.Errorf("it ended: %w", err)
		default:
		}
		last = checkApplication(ctx, address, http2)
		return last == nil, nil
	})
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("starting %s: %w: %w", process.Path, err, last)
	}
	return p, nil
}

// stop ends the process and waits for it.
func (p *peer) stop() {
	// An error means that it has ended already.
	_ = p.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(peerStopTimeout):
		_ = p.process.Process.Kill()
		<-p.ended
	}
}
