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
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// pileStreams is how many responses of pileBytes each one client requests and does
	// not read.
	pileStreams = 200
	pileBytes   = 32 << 20
	// uploads is how many bodies of uploadBytes each are sent while they are held.
	uploads     = 500
	uploadBytes = 1 << 20
	// idleConnections is how many clients keep their connection after a body of
	// idleChunks chunks.
	idleConnections = 10_000
	idleChunks      = 4
	memoryTimeout   = 10 * time.Minute
)

// pile measures how much the anonymous memory of the resolvers grows with large
// responses that an HTTP/2 client requests and does not read.
func pile(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	proxied, err := stage.proxiedApplication(ctx)
	if err != nil {
		return err
	}
	before, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	client, err := dialHTTP2(ctx, proxied.resolverHTTP2)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.grantAll(); err != nil {
		return err
	}
	for i := range uint32(pileStreams) {
		if err := client.request(2*i+1, true, http.MethodGet, fmt.Sprintf("/bytes?count=%d", pileBytes)); err != nil {
			return err
		}
	}
	if err := client.awaitData(); err != nil {
		return fmt.Errorf("waiting for the first response: %w", err)
	}
	after, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	growth := float64(after-before) / (1 << 20)
	b.row(fmt.Sprintf("growth of the anonymous memory of the resolvers with %d responses of %d MiB on one connection that is not read",
		pileStreams, pileBytes>>20), "MiB", []float64{growth})
	b.set("pile_h2_mib", growth)
	return nil
}

// heldUploads measures how much the anonymous memory of the resolvers grows with
// bodies that HTTP/2 clients send while they are held.
func heldUploads(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	app := b.NewApplication(stage.namespace, cluster.ApplicationOptions{Arguments: []string{"-start-delay=1h"}})
	if err := errors.Join(app.Create(ctx), app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
		return err
	}
	before, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	clients := make([]*http2Client, uploads)
	defer func() {
		for _, client := range clients {
			if client != nil {
				client.Close()
			}
		}
	}()
	if err := inParallel(ctx, 0, uploads, func(ctx context.Context, number int) (err error) {
		if clients[number], err = dialHTTP2(ctx, app.Address+":80"); err != nil {
			return err
		}
		return clients[number].upload(uploadBytes)
	}); err != nil {
		return err
	}
	after, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	arrived, err := b.connectionsOf(ctx, app)
	if err != nil {
		return err
	}
	if arrived < uploads {
		return fmt.Errorf("the resolvers have %d connections to hold, the others of %d are with another server", arrived, uploads)
	}
	growth := float64(after-before) / (1 << 20)
	b.row(fmt.Sprintf("growth of the anonymous memory of the resolvers with %d held uploads of %d KiB in HTTP/2", uploads, uploadBytes>>10),
		"MiB", []float64{growth})
	b.set("held_uploads_mib", growth)
	return nil
}

// idle measures how much anonymous memory of the resolvers each connection keeps
// that was used for a body in chunks and is kept for a next request.
func idle(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	restore, err := b.withConnections(ctx, idleConnections)
	defer restore()
	if err != nil {
		return err
	}
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	proxied, err := stage.proxiedApplication(ctx)
	if err != nil {
		return err
	}
	before, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	connections := make([]net.Conn, idleConnections)
	defer func() {
		for _, connection := range connections {
			if connection != nil {
				connection.Close()
			}
		}
	}()
	if err := inParallel(ctx, 0, idleConnections, func(ctx context.Context, number int) (err error) {
		connections[number], err = sendChunks(ctx, proxied.resolverHTTP)
		return err
	}); err != nil {
		return err
	}
	after, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	if closed := countResponded(connections); closed > 0 {
		return fmt.Errorf("%d of %d connections were closed, not kept", closed, idleConnections)
	}
	perConnection := float64(after-before) / idleConnections
	b.row(fmt.Sprintf("anonymous memory of the resolvers for each of %d idle connections after a body in chunks", idleConnections),
		"bytes", []float64{perConnection})
	b.set("idle_10k_bytes_per_connection", perConnection)
	return nil
}

// sendChunks sends one request with a chunked body, reads the response and returns the
// connection.
func sendChunks(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	chunk := bytes.Repeat([]byte("x"), 16<<10)
	message := fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n", address)
	for range idleChunks {
		message = fmt.Appendf(message, "%x\r\n%s\r\n", len(chunk), chunk)
	}
	if _, err := connection.Write(append(message, "0\r\n\r\n"...)); err != nil {
		return connection, err
	}
	if err := connection.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return connection, err
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(connection, 1<<10), nil)
	if err != nil {
		return connection, fmt.Errorf("reading the response: %w", err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return connection, fmt.Errorf("reading the response: %w", err)
	}
	got := cluster.Response{Status: response.StatusCode, Header: response.Header}
	return connection, got.FromApplication(proxiedName)
}

// anonymousMemory adds up the anonymous memory of processes, in bytes: what they
// have for themselves, without files.
func anonymousMemory(processes []int) (int64, error) {
	var sum int64
	for _, process := range processes {
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), "status"))
		if err != nil {
			return 0, err
		}
		kib, err := anonymousKiB(string(content))
		if err != nil {
			return 0, fmt.Errorf("process %d: %w", process, err)
		}
		sum += kib << 10
	}
	return sum, nil
}

// anonymousKiB returns the anonymous memory in the status of a process.
func anonymousKiB(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, "RssAnon:"); found {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		}
	}
	return 0, errors.New("its status has no RssAnon")
}
