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

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

func pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close(); accepted.Close() })
	return dialed.(*net.TCPConn), accepted.(*net.TCPConn)
}

func TestWaitClosedDetectsTheEndBehindUnreadBytes(t *testing.T) {
	client, server := pair(t)
	done := make(chan error, 1)
	go func() { done <- WaitClosed(server) }()
	for range 3 {
		if _, err := client.Write([]byte("still here")); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	if err := <-done; err != nil {
		t.Fatalf("waiting for the peer to close: %v", err)
	}
	// The bytes can still be read.
	got, err := io.ReadAll(server)
	if err != nil || string(got) != "still herestill herestill here" {
		t.Fatalf("read %q, %v after the wait", got, err)
	}
}

func TestWaitClosedEndsAtTheDeadline(t *testing.T) {
	_, server := pair(t)
	done := make(chan error, 1)
	go func() { done <- WaitClosed(server) }()
	if err := server.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v, want a deadline error", err)
	}
}

func TestWaitResetOutlivesHalfClose(t *testing.T) {
	client, server := pair(t)
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := WaitClosed(server); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- WaitReset(server) }()
	select {
	case err := <-done:
		t.Fatalf("a half-closed connection counts as reset (%v)", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := client.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestIdle(t *testing.T) {
	client, server := pair(t)
	raw, err := server.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if !Idle(raw) {
		t.Fatal("a fresh connection is not idle")
	}
	client.Close()
	if err := WaitClosed(server); err != nil {
		t.Fatal(err)
	}
	if Idle(raw) {
		t.Fatal("a closed connection is idle")
	}
}

func TestAcknowledgedDoesNotCountBytesThatNeverArrived(t *testing.T) {
	client, server := pair(t)
	raw, err := client.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	request := make([]byte, 100)
	if _, err := client.Write(request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if err := WaitClosed(client); err != nil {
		t.Fatal(err)
	}
	acknowledged, err := Acknowledged(raw)
	if err != nil || acknowledged < 100 || acknowledged > 101 {
		t.Fatalf("acknowledged %d (%v), want the first 100 bytes", acknowledged, err)
	}
	if _, err := client.Write(request); err != nil {
		t.Fatal(err)
	}
	if err := WaitReset(client); err != nil {
		t.Fatal(err)
	}
	after, err := Acknowledged(raw)
	if err != nil || after != acknowledged {
		t.Fatalf("acknowledged %d (%v) after writing to a closed peer, want %d still", after, err, acknowledged)
	}
}
