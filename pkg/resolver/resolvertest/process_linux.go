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
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childVariable has the name of the test that a process was started for.
const childVariable = "ELASTI_TEST_IN_OWN_PROCESS"

// InOwnProcess runs the calling test in a process of its own, whose limits and
// network it may change. It returns true in that process. In the other one it
// waits for it, fails the test when that one has failed, and returns false: the
// test then returns. With network, the process has a network of its own, with
// nothing but a loopback interface. It must not be called from a subtest.
func InOwnProcess(t *testing.T, network bool) bool {
	t.Helper()
	if os.Getenv(childVariable) == t.Name() {
		if network {
			SetLoopback(t, true)
		}
		return true
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	command.Env = append(os.Environ(), childVariable+"="+t.Name())
	if network {
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			command.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
		}
	}
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()) {
		t.Fatalf("in a process of its own (%v):\n%s", err, output)
	}
	return false
}

// SetLoopback turns the loopback interface on or off. While it is off, whatever
// is sent is lost.
func SetLoopback(tb testing.TB, up bool) {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		tb.Fatal(err)
	}
	if up {
		request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		tb.Fatalf("turning the loopback interface on or off: %v", err)
	}
}

// LimitFiles makes the files that are open now, and so many more, all that the
// process may have open, until the returned function is called.
func LimitFiles(tb testing.TB, more int) (restore func()) {
	tb.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		tb.Fatal(err)
	}
	// The limit is on numbers: what is below the highest one in use must not be
	// free.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	highest := 0
	for _, entry := range entries {
		number := 0
		for _, digit := range entry.Name() {
			number = 10*number + int(digit-'0')
		}
		highest = max(highest, number)
	}
	var fillers []int
	for {
		fd, err := unix.Dup(1)
		if err != nil {
			tb.Fatal(err)
		}
		if fd > highest {
			unix.Close(fd)
			break
		}
		fillers = append(fillers, fd)
	}
	limited := unix.Rlimit{Cur: uint64(highest + 1 + more), Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limited); err != nil {
		tb.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			tb.Error(err)
		}
		for _, fd := range fillers {
			unix.Close(fd)
		}
	}
}
