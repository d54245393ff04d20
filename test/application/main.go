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

// Command application is a small HTTP server in place of the application of a user:
// it responds with its host name and the path of the request. With -protocols it
// also serves other protocols, each on a port of its own. With -get it is a client
// instead: it prints the response of one URL.
//
// It knows nothing of the product. Begin with handler.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdownTimeout bounds how long open requests may take after SIGTERM. It is less
// than the default grace period of Kubernetes, 30 s.
const shutdownTimeout = 20 * time.Second

func main() {
	listen := flag.String("listen", ":8080", "address to listen on")
	startDelay := flag.Duration("start-delay", 0, "how long to start up before accepting connections")
	protocols := flag.Bool("protocols", false, "also serve other protocols, on ports of their own")
	url := flag.String("get", "", "URL to get once, instead of serving")
	userAgent := flag.String("user-agent", "elasti-example", "User-Agent of that request")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if *url != "" {
		if err := get(ctx, *url, *userAgent, os.Stdout); err != nil {
			log.Fatal("application: ", err)
		}
		return
	}
	if err := run(ctx, *listen, *startDelay, *protocols); err != nil {
		log.Fatal("application: ", err)
	}
}

// run serves until ctx ends and open requests have completed.
func run(ctx context.Context, listen string, startDelay time.Duration, protocols bool) (err error) {
	select {
	case <-time.After(startDelay):
	case <-ctx.Done():
		return nil
	}

	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	accepting := time.Now()
	if protocols {
		wait, err := serveProtocols(ctx, hostname, accepting)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, wait()) }()
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	log.Printf("accepting connections on %s", listener.Addr())

	server := &http.Server{Handler: newHandler(hostname, accepting), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}

	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		return fmt.Errorf("finishing open requests: %w", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}
