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

package listen

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// greet writes a word to each connection.
func greet(word string) Handler {
	return func(conn *net.TCPConn) func() {
		return func() {
			defer conn.Close()
			_, _ = io.WriteString(conn, word)
		}
	}
}

// open opens some free port.
func open(t *testing.T, s *Set, handle Handler) int32 {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	if err := s.Open(port, handle); err != nil {
		t.Fatal(err)
	}
	return port
}

func dialAndRead(address net.Addr) (string, error) {
	conn, err := net.Dial("tcp", address.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	word, err := io.ReadAll(conn)
	return string(word), err
}

func TestPortsComeAndGoAlone(t *testing.T) {
	s := New(Options{BindAddress: "127.0.0.1", Logger: klog.Background()})
	defer s.Shutdown()
	first, second := open(t, s, greet("first")), open(t, s, greet("second"))
	firstAddress, secondAddress := s.Address(first), s.Address(second)
	for address, want := range map[net.Addr]string{firstAddress: "first", secondAddress: "second"} {
		if got, err := dialAndRead(address); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := s.Open(first, greet("")); err == nil || !strings.Contains(err.Error(), "open already") {
		t.Errorf("opening a port twice: %v", err)
	}
	s.Close(first)
	s.Close(first)
	if _, err := dialAndRead(firstAddress); err == nil {
		t.Error("a closed port accepts")
	}
	if got, err := dialAndRead(secondAddress); err != nil || got != "second" {
		t.Errorf("closing one port disturbed another: %q, %v", got, err)
	}
	if s.Count() != 1 {
		t.Errorf("%d ports are open", s.Count())
	}
	if err := s.Open(first, greet("again")); err != nil {
		t.Errorf("opening a port again: %v", err)
	}
}

func TestTakenPortNamesItself(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := New(Options{BindAddress: "127.0.0.1", Logger: klog.Background()})
	defer s.Shutdown()
	err = s.Open(int32(taken.Addr().(*net.TCPAddr).Port), greet(""))
	if err == nil || !strings.Contains(err.Error(), "opening port") {
		t.Errorf("got %v", err)
	}
}

func TestShutdownKeepsConnections(t *testing.T) {
	s := New(Options{BindAddress: "127.0.0.1", Logger: klog.Background()})
	conns := make(chan *net.TCPConn, 1)
	port := open(t, s, func(conn *net.TCPConn) func() {
		conns <- conn
		return nil
	})
	client, err := net.Dial("tcp", s.Address(port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server := <-conns
	s.Shutdown()
	if err := s.Open(port, greet("")); err == nil {
		t.Error("a port opens after the shutdown")
	}
	_, _ = io.WriteString(server, "still here")
	server.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "still here" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestShutdownWaitsForHandlers shuts down while a connection that was accepted is at its
// Handler, and another one is served.
func TestShutdownWaitsForHandlers(t *testing.T) {
	s := New(Options{BindAddress: "127.0.0.1", Logger: klog.Background()})
	served, ended := make(chan struct{}, 1), make(chan struct{})
	defer close(ended)
	first := open(t, s, func(conn *net.TCPConn) func() {
		return func() {
			defer conn.Close()
			served <- struct{}{}
			<-ended
		}
	})
	handled, handle := make(chan struct{}, 1), make(chan struct{})
	var returned atomic.Bool
	second := open(t, s, func(conn *net.TCPConn) func() {
		defer conn.Close()
		handled <- struct{}{}
		<-handle
		returned.Store(true)
		return nil
	})
	for _, port := range []int32{first, second} {
		resolvertest.Dial(t, s.Address(port).String())
	}
	<-served
	<-handled
	s.Close(first)
	s.Close(second)
	shutdown := make(chan bool)
	go func() {
		s.Shutdown()
		shutdown <- returned.Load()
	}()
	select {
	case <-shutdown:
		t.Error("a connection is still handed over after the shutdown")
	case <-time.After(50 * time.Millisecond):
		close(handle)
		if !<-shutdown {
			t.Error("the shutdown does not wait for a handler")
		}
	}
}

// TestAcceptingGoesOnAfterDescriptorsRanOut connects while there is no
// descriptor for it. The connection waits, and is served once there is one.
func TestAcceptingGoesOnAfterDescriptorsRanOut(t *testing.T) {
	if !resolvertest.InOwnProcess(t, false) {
		return
	}
	var faults atomic.Int32
	s := New(Options{BindAddress: "127.0.0.1", Logger: klog.Background(), Faulted: func(fault *localfault.Error) {
		if fault.Kind != localfault.Descriptors {
			t.Errorf("reported %v", fault)
		}
		faults.Add(1)
	}})
	defer s.Shutdown()
	port := open(t, s, greet("hello"))
	if got, err := dialAndRead(s.Address(port)); err != nil || got != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	restore := resolvertest.LimitFiles(t, 0)
	if err := unix.Connect(client, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	resolvertest.Eventually(t, func() bool { return faults.Load() >= 3 })
	restore()
	data := make([]byte, len("hello"))
	if n, err := unix.Read(client, data); err != nil || string(data[:n]) != "hello" {
		t.Errorf("got %q, %v", data[:n], err)
	}
}
