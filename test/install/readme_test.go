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

package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exampleNamespace is that of the example of README.md.
const exampleNamespace = "elasti-example"

// firstCommands is the block of README.md that leads to a woken application.
var firstCommands = regexp.MustCompile("(?s)Then five commands lead to a woken application:\n\n```console\n(.*?)```")

// readmeCommands returns the commands of that block.
func (i *installation) readmeCommands() []string {
	i.Helper()
	text, err := os.ReadFile(filepath.Join(i.Repository, "README.md"))
	i.check(err)
	block := firstCommands.FindSubmatch(text)
	if block == nil {
		i.Fatalf("README.md does not have %s", firstCommands)
	}
	var commands []string
	for line := range strings.Lines(string(block[1])) {
		command, found := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !found {
			i.Fatalf("the line %q of README.md is no command", line)
		}
		commands = append(commands, command)
	}
	return commands
}

// TestCommandsOfTheReadmeWakeAnApplication runs them as written, on a cluster whose nodes
// have the images.
func TestCommandsOfTheReadmeWakeAnApplication(t *testing.T) {
	i := newInstallation(t)
	i.check(i.loadImages())
	t.Cleanup(i.deleteExample)
	commands := i.readmeCommands()
	if len(commands) != 5 {
		t.Errorf("there are %d commands, README.md says five", len(commands))
	}
	var output string
	for _, command := range commands {
		var err error
		output, err = i.runInShell(command)
		i.check(err)
	}
	if want := "hello from example-"; !strings.Contains(output, want) {
		t.Errorf("the last command printed %q, want %q", output, want)
	}
}

// loadImages gives the nodes the images under the names that the manifests have.
func (i *installation) loadImages() error {
	arguments := []string{}
	for _, name := range []string{apiServer, resolver, "elasti-example"} {
		arguments = append(arguments, filepath.Join(i.Repository, "_output", "images", name+".tar"))
	}
	load := exec.CommandContext(i.ctx, filepath.Join(i.Repository, "hack", "cluster", "load-image.sh"), arguments...)
	if output, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("loading the images: %w: %s", err, output)
	}
	return nil
}

// runInShell runs a command in the root of the repository, with kubectl on PATH.
func (i *installation) runInShell(line string) (string, error) {
	command := exec.CommandContext(i.ctx, "bash", "-c", line)
	command.Dir = i.Repository
	command.Env = append(os.Environ(),
		"KUBECONFIG="+i.Kubeconfig,
		"PATH="+filepath.Dir(i.Kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", line, err, output)
	}
	return string(output), nil
}

// deleteExample deletes the example before the product.
func (i *installation) deleteExample() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.ctx), cleanUpTimeout)
	defer cancel()
	if err := i.DeleteNamespace(ctx, exampleNamespace); err != nil {
		i.Error(err)
	}
	if err := i.AwaitNamespaceDeleted(ctx, exampleNamespace); err != nil {
		i.Error(err)
	}
}
