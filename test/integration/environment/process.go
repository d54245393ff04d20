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

package environment

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// stopTimeout is how long a process has to end after SIGTERM.
	stopTimeout = 30 * time.Second
	// tailLines is how much of a log a failure shows.
	tailLines = 40
	// dumpTimeout is how long a process has to write the stacks of its goroutines.
	dumpTimeout = 5 * time.Second
)

// Process is a process of its own process group, whose output goes to a file.
// It is killed when this process ends without stopping it. It is safe for
// concurrent use.
type Process struct {
	name    string
	log     string
	command *exec.Cmd
	// exited is closed when the process has ended and was waited for.
	exited chan struct{}
}

// startProcess starts command. Its output is appended to the file log.
func startProcess(name, log string, command *exec.Cmd) (*Process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer output.Close()
	command.Stdout, command.Stderr = output, output
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Setpgid = true
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	process := &Process{name: name, log: log, command: command, exited: make(chan struct{})}
	go func() {
		defer close(process.exited)
		// How it ended is in command.ProcessState.
		_ = command.Wait()
	}()
	return process, nil
}

// PID is the process ID.
func (p *Process) PID() int { return p.command.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode is the exit code of a process that has ended, -1 when a signal
// ended it. It must only be called after Exited is closed.
func (p *Process) ExitCode() int { return p.command.ProcessState.ExitCode() }

// Stop sends SIGTERM to the process and waits for its end. A process that takes too
// long is killed, which is an error. The error has the stacks of the goroutines of a Go
// program.
func (p *Process) Stop() error {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		tail, before := p.Tail(), len(p.Output())
		p.dump()
		stacks := p.Output()[before:]
		p.Kill()
		return fmt.Errorf("%s did not end within %s of SIGTERM\n%s\n--- its goroutines:\n%s", p.name, stopTimeout, tail, stacks)
	}
}

// terminate sends SIGTERM to the process and waits for its end. One that takes longer than
// the grace period is killed.
func (p *Process) terminate(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.Kill()
	}
}

// dump makes the process write the stacks of its goroutines and end, which a Go program
// does on SIGQUIT.
func (p *Process) dump() {
	p.signal(syscall.SIGQUIT)
	timer := time.NewTimer(dumpTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
	}
}

// Kill ends the process and all of its children at once, as kill -9 does, and
// waits for it.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// signal goes to the whole process group. An error means that it has ended.
func (p *Process) signal(signal syscall.Signal) {
	select {
	case <-p.exited:
	default:
		_ = syscall.Kill(-p.PID(), signal)
	}
}

// Output is everything that the process, and those before it with the same
// log, have written so far.
func (p *Process) Output() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("the log of %s cannot be read: %v", p.name, err)
	}
	return string(content)
}

// Tail is the end of the output, with a heading.
func (p *Process) Tail() string {
	lines := strings.Split(strings.TrimRight(p.Output(), "\n"), "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return fmt.Sprintf("--- the end of %s:\n%s", p.log, strings.Join(lines, "\n"))
}
