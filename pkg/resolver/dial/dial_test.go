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

package dial_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

func at(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	return netip.MustParseAddrPort(address)
}

// refusing returns an address that refuses connections.
func refusing(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return at(t, listener.Addr().String())
}

func TestFirstAddressThatAcceptsIsTaken(t *testing.T) {
	accepting := at(t, resolvertest.Listen(t, func(*net.TCPConn) {}))
	var connected []*net.TCPConn
	d := dial.New(dial.Options{Connected: func(conn *net.TCPConn) { connected = append(connected, conn) }})
	conn, err := d.Pod(t.Context(), []netip.AddrPort{refusing(t), accepting})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != accepting.String() || len(connected) != 1 || connected[0] != conn {
		t.Errorf("connected to %s, reported %v", conn.RemoteAddr(), connected)
	}
}

func TestPodThatRefusesIsNoLocalFault(t *testing.T) {
	d := dial.New(dial.Options{Faulted: func(fault *localfault.Error) { t.Errorf("reported %v", fault) }})
	for name, addresses := range map[string][]netip.AddrPort{
		"refused": {refusing(t)},
		// This machine has no local address of that family.
		"refused at one address, the other cannot be reached": {refusing(t), at(t, "[2001:db8::1]:80")},
		"no address": nil,
	} {
		_, err := d.Pod(t.Context(), addresses)
		if err == nil || localfault.Of(err) != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Pod(t.Context(), []netip.AddrPort{refusing(t)}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Pod(ctx, []netip.AddrPort{refusing(t)}); !errors.Is(err, context.Canceled) && localfault.Of(err) != nil {
		t.Errorf("canceled: %v", err)
	}
}

func TestNoDescriptorLeftIsALocalFault(t *testing.T) {
	if !resolvertest.InOwnProcess(t, false) {
		return
	}
	address := at(t, resolvertest.Listen(t, func(*net.TCPConn) {}))
	expectFault(t, address, localfault.Descriptors, func() (restore func()) { return resolvertest.LimitFiles(t, 0) })
}

func TestNoPortLeftIsALocalFault(t *testing.T) {
	if !resolvertest.InOwnProcess(t, true) {
		return
	}
	address := at(t, resolvertest.Listen(t, func(conn *net.TCPConn) {
		// The server closes after the client, because the ports of connections that it
		// closes first stay in use.
		_, _ = conn.Read(make([]byte, 1))
	}))
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	expectFault(t, address, localfault.Ports, func() (restore func()) {
		if err := os.WriteFile(ports, []byte("40000 40001"), 0); err != nil {
			t.Fatal(err)
		}
		var taken []net.Conn
		for range 2 {
			conn, err := net.Dial("tcp", address.String())
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, conn)
		}
		return func() {
			for _, conn := range taken {
				conn.Close()
			}
			if err := os.WriteFile(ports, []byte("32768 60999"), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// expectFault connects during a fault of this machine, and after it.
func expectFault(t *testing.T, address netip.AddrPort, kind localfault.Kind, begin func() (end func())) {
	t.Helper()
	var faults []localfault.Kind
	d := dial.New(dial.Options{Faulted: func(fault *localfault.Error) { faults = append(faults, fault.Kind) }})
	// The runtime opens its own files with the first connection.
	before, err := d.Pod(t.Context(), []netip.AddrPort{address})
	if err != nil {
		t.Fatal(err)
	}
	// The pod's end, which is also a file of this process, is closed by then.
	if err := errors.Join(before.CloseWrite(), drain(before), before.Close()); err != nil {
		t.Fatal(err)
	}
	end := begin()
	_, err = d.Pod(t.Context(), []netip.AddrPort{address})
	end()
	if fault := localfault.Of(err); fault == nil || fault.Kind != kind || len(faults) != 1 || faults[0] != kind {
		t.Errorf("got %v, reported %v, want %s", err, faults, kind)
	}
	after, err := d.Pod(t.Context(), []netip.AddrPort{address})
	if err != nil {
		t.Fatalf("after the fault: %v", err)
	}
	after.Close()
}

// drain reads until the peer has closed.
func drain(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	return err
}
