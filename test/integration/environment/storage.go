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
	"path/filepath"

	"github.com/truefoundry/elasti-apiserver/test/repository"
)

// storageVariable chooses where the servers of environments store ElastiServices:
// in the embedded store if it is empty, or in the host cluster.
const storageVariable = "ELASTI_TEST_STORAGE"

// usesClusterStorage reports whether the variable chooses the host cluster.
func usesClusterStorage() (bool, error) {
	switch storage := os.Getenv(storageVariable); storage {
	case "", "embedded":
		return false, nil
	case "cluster":
		return true, nil
	default:
		return false, fmt.Errorf("%s is %q, but must be embedded or cluster", storageVariable, storage)
	}
}

// storageFlags are the flags of a server that say where it stores ElastiServices.
func (e *Environment) storageFlags(dataDir string) []string {
	if e.clusterStorage {
		return []string{"--storage=cluster"}
	}
	return []string{"--storage=embedded", "--data-dir=" + dataDir}
}

// kustomization returns the folder to deploy: artifacts/deploy, or its base when nothing is
// stored in the host cluster.
func (e *Environment) kustomization() (folder string, err error) {
	root, err := repository.Root()
	if err != nil {
		return "", err
	}
	if e.clusterStorage {
		return filepath.Join(root, "artifacts", "deploy"), nil
	}
	return filepath.Join(root, "artifacts", "deploy", "base"), nil
}

// InstallClusterStorage adds to the host cluster what the storage in it needs, without its
// policies.
func (e *Environment) InstallClusterStorage(ctx context.Context, admin *Kubectl) error {
	manifests := filepath.Join(e.Manifests(), "storage")
	for _, file := range []string{"customresourcedefinitions.yaml", "clusterrole.yaml", "clusterrolebinding.yaml"} {
		if _, err := admin.Run(ctx, "", "apply", "-f", filepath.Join(manifests, file)); err != nil {
			return err
		}
	}
	run := func(ctx context.Context, arguments ...string) (string, error) {
		return admin.Run(ctx, "", arguments...)
	}
	return AwaitEstablished(ctx, run, "crd/storedelastiservices.storage.elasti.truefoundry.com", "crd/storedproxyportclaims.storage.elasti.truefoundry.com")
}
