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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// heldRequests is how many requests are held at once, heldDialers how many
	// of them are sent at a time.
	heldRequests = 10000
	heldDialers  = 64
	// memorySettles is how many readings of the memory in a row must be the
	// same, within memoryTolerance, before it counts as settled.
	memorySettles      = 5
	memoryTolerance    = 1 << 20
	memoryPollInterval = 500 * time.Millisecond
)

// held measures how much the anonymous memory of a resolver grows with the requests
// that it holds. That of the others, which hold none, is included.
func held(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	restore, err := b.withConnections(ctx, heldRequests)
	defer restore()
	if err != nil {
		return err
	}
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	app := b.NewApplication(stage.namespace, cluster.ApplicationOptions{Arguments: []string{"-start-delay=1h"}})
	if err := errors.Join(app.Create(ctx), app.AwaitAsleep(ctx), app.AwaitResolverSlice(ctx, true), app.AwaitReachable(ctx)); err != nil {
		return err
	}
	resolver, proxy, err := b.resolverOf(ctx, app)
	if err != nil {
		return err
	}
	token, remove, err := stage.metricsToken(ctx)
	if err != nil {
		return err
	}
	defer remove()
	// The first reading allocates what later ones use again.
	if _, err := readMetrics(ctx, resolver, token); err != nil {
		return err
	}
	before, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	connections, err := openRequests(ctx, proxy, heldRequests)
	defer func() {
		for _, connection := range connections {
			if connection != nil {
				connection.Close()
			}
		}
	}()
	if err != nil {
		return err
	}
	after, err := b.settledMemory(ctx, anonymousMemory)
	if err != nil {
		return err
	}
	if err := checkHeld(ctx, connections, resolver, token, app); err != nil {
		return err
	}
	perRequest := float64(after-before) / heldRequests
	b.row(fmt.Sprintf("anonymous memory of the resolvers for each of %d requests that one of them holds", heldRequests), "bytes", []float64{perRequest})
	b.set("held_10k_bytes_per_request", perRequest)
	return nil
}

// checkHeld returns an error unless the resolver holds a request on each connection.
func checkHeld(ctx context.Context, connections []net.Conn, resolver, token string, app *cluster.Application) error {
	if responded := countResponded(connections); responded > 0 {
		return fmt.Errorf("%d of %d requests got a response or were closed, not held", responded, len(connections))
	}
	metrics, err := readMetrics(ctx, resolver, token)
	if err != nil {
		return err
	}
	holds, err := heldFor(metrics, app.Namespace, app.Name)
	if err == nil && holds != len(connections) {
		err = fmt.Errorf("resolver %s holds %d requests of %d", resolver, holds, len(connections))
	}
	return err
}

// openRequests sends requests, each over its own connection, and does not wait for the
// responses.
func openRequests(ctx context.Context, address string, number int) ([]net.Conn, error) {
	connections, failures := make([]net.Conn, number), make([]error, heldDialers)
	var ended sync.WaitGroup
	for dialer := range heldDialers {
		ended.Go(func() {
			for i := dialer; i < number && failures[dialer] == nil; i += heldDialers {
				connections[i], failures[dialer] = openRequest(ctx, address)
			}
		})
	}
	ended.Wait()
	return connections, errors.Join(failures...)
}

func openRequest(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(connection, "GET /held HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", address)
	return connection, err
}

// countResponded counts the connections from which something can be read, or
// that were closed.
func countResponded(connections []net.Conn) int {
	responded := 0
	for _, connection := range connections {
		_ = connection.SetReadDeadline(time.Now().Add(time.Microsecond))
		if _, err := connection.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			responded++
		}
	}
	return responded
}

// resolverMemory waits until the resident memory of the resolvers does not
// change any more and returns it, in bytes.
func (b *bench) resolverMemory(ctx context.Context) (int64, error) {
	return b.settledMemory(ctx, residentMemory)
}

// settledMemory waits until the memory of the resolvers, as of reads it, does not
// change any more and returns it, in bytes.
func (b *bench) settledMemory(ctx context.Context, of func(processes []int) (int64, error)) (int64, error) {
	processes, err := b.resolverProcesses(ctx)
	if err != nil {
		return 0, err
	}
	var last int64
	same := 0
	err = wait.PollUntilContextCancel(ctx, memoryPollInterval, true, func(context.Context) (bool, error) {
		now, err := of(processes)
		if err != nil {
			return false, err
		}
		if change := now - last; change > memoryTolerance || change < -memoryTolerance {
			same = 0
		} else {
			same++
		}
		last = now
		return same >= memorySettles, nil
	})
	if err != nil {
		return 0, fmt.Errorf("waiting until the memory of the resolvers does not change: %w", err)
	}
	return last, nil
}

func (b *bench) resolverProcesses(ctx context.Context) ([]int, error) {
	pods, err := b.SystemPods(ctx, cluster.ResolverSelector)
	if err != nil {
		return nil, err
	}
	var processes []int
	for i := range pods {
		found, err := cluster.ContainerProcesses(&pods[i])
		if err != nil {
			return nil, err
		}
		processes = append(processes, found...)
	}
	return processes, nil
}

// connectionsOf returns how many connections the resolvers have on the proxy
// ports of an application.
func (b *bench) connectionsOf(ctx context.Context, app *cluster.Application) (int, error) {
	elastiService, err := b.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	ports := make(map[uint64]bool)
	for _, port := range elastiService.Status.ProxyPorts {
		ports[uint64(port.ProxyPort)] = true
	}
	processes, err := b.resolverProcesses(ctx)
	if err != nil {
		return 0, err
	}
	sum := 0
	for _, process := range processes {
		for _, table := range []string{"tcp", "tcp6"} {
			content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), "net", table))
			if err != nil {
				return 0, err
			}
			sum += countEstablished(string(content), ports)
		}
	}
	return sum, nil
}

// countEstablished counts the established connections on local ports in a table
// of the kernel such as /proc/net/tcp.
func countEstablished(table string, ports map[uint64]bool) int {
	const established = "01"
	count := 0
	for line := range strings.Lines(table) {
		// The number, the local address, the remote address and the state come first.
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != established {
			continue
		}
		_, port, _ := strings.Cut(fields[1], ":")
		if number, err := strconv.ParseUint(port, 16, 16); err == nil && ports[number] {
			count++
		}
	}
	return count
}

// residentMemory adds up the resident memory of processes, in bytes.
func residentMemory(processes []int) (int64, error) {
	var sum int64
	for _, process := range processes {
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(process), "statm"))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(content))
		if len(fields) < 2 {
			return 0, fmt.Errorf("process %d: unexpected statm %q", process, content)
		}
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += pages * int64(os.Getpagesize())
	}
	return sum, nil
}
