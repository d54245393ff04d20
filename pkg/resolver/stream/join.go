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

// Package stream carries bytes between a client and a pod without looking at
// them: TLS, databases, WebSocket after the upgrade, anything that is not HTTP.
package stream

import (
	"io"
	"net"
	"sync"
)

// Conn is a connection that bytes are carried from and to.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Join carries bytes between two connections until both directions have ended,
// and returns how many went from a to b and from b to a. The end of one
// direction is passed on while the other goes on; a connection that breaks
// ends both. The caller closes the connections.
func Join(a, b *net.TCPConn) (aToB, bToA int64) {
	var other sync.WaitGroup
	other.Go(func() { aToB = Carry(b, a) })
	bToA = Carry(a, b)
	other.Wait()
	return aToB, bToA
}

// Carry copies src to dst until src ends, and passes the end on; the kernel moves
// the bytes where it can. When either breaks it closes both. It returns how many
// bytes it wrote.
func Carry(dst, src Conn) int64 {
	n, err := io.Copy(dst, src)
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		// Neither side can be told by half a close: what the other direction
		// still carries would never be asked for.
		dst.Close()
		src.Close()
	}
	return n
}
