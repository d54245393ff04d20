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

// Package adminserver serves what the cluster itself requests from a resolver: the
// kubelet's probes, the port checks of the controller, and metrics. Every pod of the
// cluster may reach these ports, so connections are bounded for each source address
// and in all, and so is the time that each may take.
//
// It knows nothing of what it serves. Begin with Server.
package adminserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

const (
	// maxConnections bounds the connections of a server, and maxPerSource those of
	// one source address: a replica of the controller opens one for each
	// ElastiService that it is working on.
	maxConnections = 256
	maxPerSource   = 64
	// maxHeaderBytes bounds the headers of a request. The longest are those of a
	// port check about 1,024 ports, and of a scrape with its token.
	maxHeaderBytes = 32 << 10
)

// timeouts bound the parts of a request.
type timeouts struct{ header, read, write, idle time.Duration }

func defaultTimeouts() timeouts {
	return timeouts{header: 5 * time.Second, read: 10 * time.Second, write: 30 * time.Second, idle: time.Minute}
}

// Server serves HTTP on one listener.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// New returns a Server that serves a handler on a listener; with tlsConfig, over TLS.
// Run closes the listener.
func New(listener net.Listener, tlsConfig *tls.Config, handler http.Handler, logger klog.Logger) *Server {
	return newServer(listener, tlsConfig, handler, logger, limits{total: maxConnections, perSource: maxPerSource}, defaultTimeouts())
}

func newServer(listener net.Listener, tlsConfig *tls.Config, handler http.Handler, logger klog.Logger, limits limits, timeouts timeouts) *Server {
	// Below TLS: closing a connection must not wait for its client.
	listener = newLimitListener(listener, limits)
	if tlsConfig != nil {
		listener = tls.NewListener(listener, tlsConfig)
	}
	return &Server{listener: listener, http: &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: timeouts.header,
		ReadTimeout:       timeouts.read,
		WriteTimeout:      timeouts.write,
		IdleTimeout:       timeouts.idle,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(errorWriter{logger}, "", 0),
	}}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		// The only errors are of listeners that are closed already.
		_ = s.http.Close()
	})
	defer stop()
	if err := s.http.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", s.listener.Addr(), err)
	}
	return nil
}

// errorWriter writes what net/http has to say to a log.
type errorWriter struct{ logger klog.Logger }

// Write implements io.Writer.
func (w errorWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	if strings.HasPrefix(text, "http: TLS handshake error") {
		// Every pod can cause these, as many as it likes.
		w.logger.V(4).Info("TLS handshake failed", "err", text)
	} else {
		w.logger.Error(nil, "Failed to serve a request", "err", text)
	}
	return len(line), nil
}
