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
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/truefoundry/elasti-apiserver/test/repository"
)

// toolsVariable names the folder of the Kubernetes and etcd binaries.
const toolsVariable = "ELASTI_TOOLS_DIR"

// tools are the binaries that an environment is made of.
type tools struct {
	// directory has the binaries.
	directory                                   string
	etcd, apiServer, controllerManager, kubectl string
}

// findTools finds the pinned binaries. A missing one is an error, because tests that
// need it must fail instead of being skipped.
func findTools() (tools, error) {
	directory := os.Getenv(toolsVariable)
	if directory == "" {
		root, err := repository.Root()
		if err != nil {
			return tools{}, err
		}
		directory = filepath.Join(root, "_output", "tools", "bin")
	}
	found := tools{directory: directory}
	for name, path := range map[string]*string{
		"etcd":                    &found.etcd,
		"kube-apiserver":          &found.apiServer,
		"kube-controller-manager": &found.controllerManager,
		"kubectl":                 &found.kubectl,
	} {
		var err error
		if *path, err = found.find(name, "make test-integration"); err != nil {
			return tools{}, err
		}
	}
	return found, nil
}

// find returns the path of a binary, which a target of the Makefile builds.
func (t tools) find(name, target string) (string, error) {
	path := filepath.Join(t.directory, name)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("there is no %s in %s: `%s` builds it, or point %s at a folder that has it", name, t.directory, target, toolsVariable)
	}
	return path, nil
}

// buildServer compiles elasti-apiserver. With the race detector, the environment checks
// for its reports when a server has ended.
func buildServer(ctx context.Context, binary string, flags ...string) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	arguments := append([]string{"build"}, flags...)
	build := exec.CommandContext(ctx, "go", append(arguments, "-o", binary, "./cmd/elasti-apiserver")...)
	build.Dir = root
	if slices.Contains(flags, "-race") {
		// The race detector needs cgo, which other builds may be without.
		build.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building elasti-apiserver: %w\n%s", err, output)
	}
	return nil
}
