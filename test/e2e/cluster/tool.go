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

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

const (
	// toolTimeout is how long a tool has to end after SIGTERM.
	toolTimeout = 30 * time.Second
	// toolTailLines is how much of a tool's log is shown.
	toolTailLines = 40
)

// Tool is a program of hack/tools that runs on this machine, beside the cluster,
// as its administrator. It is killed when this process ends without stopping it.
type Tool struct {
	name    string
	log     string
	command *exec.Cmd
	// exited is closed when the program has ended and was waited for.
	exited chan struct{}
}

// StartTool starts a program that hack/tools/build.sh has built, with
// KUBECONFIG and the given variables ("NAME=value") in its environment. Its
// output goes to a file in the directory.
func (c *Cluster) StartTool(name, directory string, variables []string, arguments ...string) (*Tool, error) {
	binary := filepath.Join(c.Repository, "_output", "tools", "bin", name)
	if _, err := os.Stat(binary); err != nil {
		return nil, fmt.Errorf("run \"hack/tools/build.sh %s\" first: %w", name, err)
	}
	tool := &Tool{name: name, log: filepath.Join(directory, name+".log"), command: exec.Command(binary, arguments...), exited: make(chan struct{})}
	output, err := os.OpenFile(tool.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer output.Close()
	tool.command.Env = append(append(os.Environ(), clientcmd.RecommendedConfigPathEnvVar+"="+c.Kubeconfig), variables...)
	tool.command.Stdout, tool.command.Stderr = output, output
	tool.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := tool.command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		defer close(tool.exited)
		// The exit status is not needed: Stop reports a program that ended too early.
		_ = tool.command.Wait()
	}()
	return tool, nil
}

// Stop ends the program and waits for it. It is an error when the program had ended before,
// or does not end by itself.
func (t *Tool) Stop() error {
	select {
	case <-t.exited:
		return fmt.Errorf("%s has ended too early\n%s", t.name, t.Tail())
	default:
	}
	_ = syscall.Kill(-t.command.Process.Pid, syscall.SIGTERM)
	timer := time.NewTimer(toolTimeout)
	defer timer.Stop()
	select {
	case <-t.exited:
		return nil
	case <-timer.C:
		_ = syscall.Kill(-t.command.Process.Pid, syscall.SIGKILL)
		<-t.exited
		return fmt.Errorf("%s did not end within %s of SIGTERM\n%s", t.name, toolTimeout, t.Tail())
	}
}

// Tail is the end of what the program has written, with a heading.
func (t *Tool) Tail() string {
	content, err := os.ReadFile(t.log)
	if err != nil {
		return fmt.Sprintf("the log of %s cannot be read: %v", t.name, err)
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	if len(lines) > toolTailLines {
		lines = lines[len(lines)-toolTailLines:]
	}
	return fmt.Sprintf("--- the end of %s:\n%s", t.log, strings.Join(lines, "\n"))
}
