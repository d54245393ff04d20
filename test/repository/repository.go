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

// Package repository finds the files of this repository for tests and benchmarks,
// which run in a directory below its root.
//
// It knows nothing of what they read there. Begin with Root.
package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// module is the first line of the go.mod in the root. Below it are modules of other names.
const module = "module github.com/truefoundry/elasti-apiserver\n"

// Root returns the root of the repository: the first directory with the go.mod of the
// product, from the working directory upwards.
func Root() (string, error) {
	working, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the root of the repository: %w", err)
	}
	directory := working
	for {
		content, err := os.ReadFile(filepath.Join(directory, "go.mod"))
		if err == nil && strings.HasPrefix(string(content), module) {
			return directory, nil
		}
		parent := filepath.Dir(directory)
		if parent == directory {
			return "", fmt.Errorf("no go.mod of the product in %s or above it: run this in the repository", working)
		}
		directory = parent
	}
}
