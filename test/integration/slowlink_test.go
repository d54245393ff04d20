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

package integration

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// startSlowLink forwards connections to the shared server, and delays the bytes from the
// server. It returns the port of the server's address on which it listens. It ends with the
// test.
func startSlowLink(t *testing.T, delay time.Duration) (port int) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(shared.Server.Address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		running.Wait()
	})
	server := net.JoinHostPort(shared.Server.Address, strconv.Itoa(shared.Server.Port))
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Errorf("accepting a connection: %v", err)
				return
			}
			running.Go(func() { passOn(ctx, client, server, delay) })
		}
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// passOn passes on one connection until one side or ctx ends it.
func passOn(ctx context.Context, client net.Conn, address string, delay time.Duration) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		// The client sees that its connection ends.
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	})
	both.Go(func() {
		defer client.Close()
		_ = copyLate(ctx, client, server, delay)
	})
	both.Wait()
}

// piece is what was read at once, and when it is due.
type piece struct {
	content []byte
	due     time.Time
}

// copyLate copies with a delay, which does not reduce the throughput.
func copyLate(ctx context.Context, to io.Writer, from io.Reader, delay time.Duration) error {
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case pieces <- piece{buffer[:n], time.Now().Add(delay)}:
				case <-ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for next := range pieces {
		timer := time.NewTimer(time.Until(next.due))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if _, err := to.Write(next.content); err != nil {
			return err
		}
	}
	return nil
}
