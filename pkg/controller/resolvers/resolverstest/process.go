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

package resolverstest

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
)

// Process is that of a resolver as the network sees it: real sockets on loopback.
// It is safe for concurrent use.
type Process struct {
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

// StartProcess starts a process that listens on an address, until the test ends.
func StartProcess(t *testing.T, address string) *Process {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, conn)
			p.mu.Unlock()
		}
	}()
	t.Cleanup(p.Kill)
	return p
}

// HangUp closes the connections that there are, as a server does with one that
// requests nothing.
func (p *Process) HangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// Address returns the address that the process listens on.
func (p *Process) Address() string { return p.listener.Addr().String() }

// Connected reports whether there is a connection to the process.
func (p *Process) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) > 0
}

// Kill closes everything, as the kernel does for a process that has ended.
func (p *Process) Kill() {
	_ = p.listener.Close()
	p.HangUp()
}

// DialProcesses returns a function that dials the address of a host. What is sent to
// other hosts is dropped.
func DialProcesses(addresses map[string]string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		to, ok := addresses[host]
		if !ok {
			// Something in between drops what is sent.
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, to)
	}
}
