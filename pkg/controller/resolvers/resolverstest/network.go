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
	"syscall"
)

// Network accepts connections, or rejects them as it is set. The zero value accepts
// all. It is safe for concurrent use.
type Network struct {
	mu sync.Mutex
	// responses are the errors of dials, by address. Other dials succeed.
	responses map[string]error
	dials     int
}

// Dial responds as the network does. The connection is closed at the other end.
func (n *Network) Dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if err := n.responses[address]; err != nil {
		return nil, &net.OpError{Op: "dial", Err: err}
	}
	client, server := net.Pipe()
	_ = server.Close()
	return client, nil
}

// Respond makes dials of an address end with err, which may be nil.
func (n *Network) Respond(address string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.responses == nil {
		n.responses = map[string]error{}
	}
	n.responses[address] = err
}

// TakeDials returns the number of dials since the last call.
func (n *Network) TakeDials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	dials := n.dials
	n.dials = 0
	return dials
}

// ConnectionRefused returns the error of a port that no process listens on.
func ConnectionRefused() error { return os.NewSyscallError("connect", syscall.ECONNREFUSED) }
