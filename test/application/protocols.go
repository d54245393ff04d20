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
	"net/http"
	"sync"
	"time"

	"github.com/mccutchen/go-httpbin/v2/httpbin"
)

// The ports of -protocols, each for one protocol.
const (
	webAddress      = ":8081"
	mirrorAddress   = ":8082"
	grpcAddress     = ":8083"
	echoAddress     = ":8084"
	greetingAddress = ":8085"
	tlsAddress      = ":8086"
	binAddress      = ":8087"
)

// serveProtocols serves every protocol until ctx ends. The returned function
// waits for that; the ports are open when serveProtocols returns.
func serveProtocols(ctx context.Context, hostname string, accepting time.Time) (wait func() error, err error) {
	certificate, err := newCertificate(hostname)
	if err != nil {
		return nil, fmt.Errorf("creating a certificate: %w", err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for _, protocol := range []struct {
		address string
		serve   func(context.Context, net.Listener) error
	}{
		{webAddress, serveHTTP(newWebHandler(newHandler(hostname, accepting)))},
		{mirrorAddress, serveConnections(mirror)},
		{grpcAddress, serveGRPC},
		{echoAddress, serveConnections(echo)},
		{greetingAddress, serveConnections(greet)},
		{tlsAddress, serveTLS(certificate)},
		// A third-party application.
		{binAddress, serveHTTP(httpbin.New())},
	} {
		var listen net.ListenConfig
		listener, err := listen.Listen(ctx, "tcp", protocol.address)
		if err != nil {
			return nil, fmt.Errorf("listening on %s: %w", protocol.address, err)
		}
		running.Go(func() {
			if err := protocol.serve(ctx, listener); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, fmt.Errorf("serving %s: %w", protocol.address, err))
			}
		})
	}
	return func() error {
		running.Wait()
		return failed
	}, nil
}

// serveHTTP serves a handler until ctx ends and open requests have completed.
func serveHTTP(handler http.Handler) func(context.Context, net.Listener) error {
	return func(ctx context.Context, listener net.Listener) error {
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
		}
		shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(shutdown); err != nil {
			return fmt.Errorf("finishing open requests: %w", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
}

// serveConnections serves each connection with a function until ctx ends. The function
// must return when its connection is closed.
func serveConnections(serve func(*net.TCPConn)) func(context.Context, net.Listener) error {
	return func(ctx context.Context, listener net.Listener) error {
		var serving sync.WaitGroup
		defer serving.Wait()
		stop := context.AfterFunc(ctx, func() { listener.Close() })
		defer stop()
		for {
			conn, err := listener.Accept()
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			serving.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				serve(conn.(*net.TCPConn))
			})
		}
	}
}
