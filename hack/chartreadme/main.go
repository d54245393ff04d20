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

// Command chartreadme writes the table of values into the README of a Helm chart, from
// the comments of its values.yaml:
//
//	chartreadme [--check] CHART
//
// With --check it writes nothing, and fails when the README is not what it would write.
//
// It knows nothing of the templates of the chart. Begin with table.go.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/truefoundry/elasti-apiserver/hack/generated"
)

func main() {
	generated.Main("chartreadme [--check] CHART", files)
}

// files returns the README of a chart.
func files(chart string) (map[string][]byte, error) {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the values: %w", err)
	}
	table, err := valuesTable(values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(chart, "values.yaml"), err)
	}
	path := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the README: %w", err)
	}
	if readme, err = generated.Replace(readme, begin, table, end); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return map[string][]byte{path: readme}, nil
}
