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

// Package programs runs servers of others, which a cluster has beside the
// product, as processes of this machine: Prometheus, metrics-server and KEDA.
//
// It knows nothing of the product. Begin with Program.
package programs

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// maxLogBytes bounds how much of the end of a log is shown.
const maxLogBytes = 8 << 10

// Program is a program that runs as a process of this machine, and that ends
// with this process. For use by one goroutine.
type Program struct {
	// Path of the executable, its Arguments, and what is added to the environment.
	Path                   string
	Arguments, Environment []string
	// Directory is where its log is written. It must exist.
	Directory string

	// process is nil while it does not run; ended is closed when it has ended.
	process *os.Process
	ended   chan struct{}
}

// Start starts the program; its log goes on where it was.
func (p *Program) Start() error {
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.name(), err)
	}
	command := exec.Command(p.Path, p.Arguments...)
	command.Env = append(os.Environ(), p.Environment...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		// The signal comes when the thread ends that has started the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		defer log.Close()
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("starting %s: %w", p.name(), err)
	}
	p.process, p.ended = command.Process, ended
	return nil
}

// Ended is closed when the program has ended. Call it after Start.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Kill ends the program with SIGKILL, if it runs, and waits until it has ended.
func (p *Program) Kill() { p.end(syscall.SIGKILL) }

// Stop has the program end, if it runs, and waits until it has.
func (p *Program) Stop() { p.end(syscall.SIGTERM) }

func (p *Program) end(signal syscall.Signal) {
	if p.process == nil {
		return
	}
	_ = p.process.Signal(signal)
	<-p.ended
	p.process = nil
}

// Log returns the end of what the program has written.
func (p *Program) Log() string {
	content, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return strings.ToValidUTF8(string(content[max(0, len(content)-maxLogBytes):]), "")
}

func (p *Program) name() string    { return filepath.Base(p.Path) }
func (p *Program) logFile() string { return filepath.Join(p.Directory, p.name()+".log") }

// FreeAddress returns an address of a host on which no process listens at the moment.
func FreeAddress(host string) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("finding a free port of %s: %w", host, err)
	}
	return listener.Addr().String(), listener.Close()
}
