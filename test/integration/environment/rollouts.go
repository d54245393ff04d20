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
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/truefoundry/elasti-apiserver/test/repository"
)

// RolloutDefinition returns the file with the CustomResourceDefinition of Argo
// Rollouts, from the release that hack/tools/argo-rollouts pins.
func RolloutDefinition(ctx context.Context) (string, error) {
	folder, err := RolloutDefinitions(ctx)
	return filepath.Join(folder, "rollout-crd.yaml"), err
}

// RolloutDefinitions returns the folder with all the CustomResourceDefinitions
// of that release, which is a kustomization.
func RolloutDefinitions(ctx context.Context) (string, error) {
	folder, err := moduleFolder(ctx, "argo-rollouts", "github.com/argoproj/argo-rollouts")
	return filepath.Join(folder, "manifests", "crds"), err
}

// moduleFolder returns the folder of a module, in the version that the tool
// pins in hack/tools.
func moduleFolder(ctx context.Context, tool, module string) (folder string, err error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	for _, arguments := range [][]string{
		{"mod", "download", module},
		{"list", "-m", "-f", "{{.Dir}}", module},
	} {
		command := exec.CommandContext(ctx, "go", arguments...)
		command.Dir = filepath.Join(root, "hack", "tools", tool)
		output, err := command.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("finding the module %s: %w: %s", module, err, output)
		}
		folder = strings.TrimSpace(string(output))
	}
	return folder, nil
}
