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

package resolvertest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
)

// Pods describes ready pods at addresses, which are also their names. Each has
// the port of its address as its only one, without a name.
func Pods(addresses ...string) []endpoint.Description {
	var pods []endpoint.Description
	for _, address := range addresses {
		at := netip.MustParseAddrPort(address)
		pods = append(pods, endpoint.Description{
			ID: address, Name: address, Addresses: []netip.Addr{at.Addr()},
			Ports: map[string]uint16{"": at.Port()}, Ready: true,
		})
	}
	return pods
}

// Listen accepts connections, hands each to serve in a goroutine of its own,
// closes it when serve returns, and returns the address. The end of the test
// closes what is open and waits for serve to return.
func Listen(tb testing.TB, serve func(*net.TCPConn)) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	ended, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(ended, func() { conn.Close() })
				defer stop()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	tb.Cleanup(func() {
		listener.Close()
		end()
		running.Wait()
	})
	return listener.Addr().String()
}

// ListenHTTP serves a handler with net/http, in HTTP/1.1 and in HTTP/2 with
// prior knowledge, and returns the address.
func ListenHTTP(tb testing.TB, handler http.HandlerFunc) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	tb.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// Dial connects to an address. All that the test does with the connection has 20
// seconds. It is closed at the end of the test.
func Dial(tb testing.TB, address string) *net.TCPConn {
	tb.Helper()
	return dial(tb, &net.Dialer{}, address)
}

// DialFrom is Dial from a source address, such as any of 127.0.0.0/8.
func DialFrom(tb testing.TB, source, address string) *net.TCPConn {
	tb.Helper()
	return dial(tb, &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}, address)
}

func dial(tb testing.TB, dialer *net.Dialer, address string) *net.TCPConn {
	tb.Helper()
	conn, err := dialer.DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		tb.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// AwaitReset reads from a connection until it ends, and fails the test unless it
// is reset before anything came.
func AwaitReset(tb testing.TB, conn net.Conn) {
	tb.Helper()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		tb.Errorf("the connection gets %d bytes and %v, want a reset", n, err)
	}
}

// AwaitEnd reads from a connection until it ends, and fails the test unless it does
// before anything came.
func AwaitEnd(tb testing.TB, conn net.Conn) {
	tb.Helper()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Errorf("the connection gets %d bytes and %v, want its end", n, err)
	}
}

// DialReset connects to an address, and fails the test unless the connection is
// reset: the reset may be faster than the client.
func DialReset(tb testing.TB, address string) {
	tb.Helper()
	conn, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", address)
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		tb.Fatal(err)
	}
	AwaitReset(tb, conn)
}

// FreePort returns a port that is not listened on.
func FreePort(tb testing.TB) int32 {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}
