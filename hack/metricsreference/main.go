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

// Command metricsreference writes the tables of the reference of metrics, from what the
// code of both binaries registers:
//
//	metricsreference [--check] PAGE
//
// With --check it writes nothing, and fails when the page is not what it would write.
//
// It knows nothing of what the metrics measure: their help says that. Begin with collect.go.
package main

import (
	"fmt"
	"os"

	"github.com/truefoundry/elasti-apiserver/hack/generated"
)

func main() {
	generated.Main("metricsreference [--check] PAGE", files)
}

// files returns the page with its tables.
func files(path string) (map[string][]byte, error) {
	server, libraries, err := serverMetrics()
	if err != nil {
		return nil, fmt.Errorf("the metrics of elasti-apiserver: %w", err)
	}
	resolver, err := resolverMetrics()
	if err != nil {
		return nil, fmt.Errorf("the metrics of elasti-resolver: %w", err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the page: %w", err)
	}
	for _, section := range []struct {
		name  string
		table string
	}{
		{"elasti-apiserver", ownTable(server)},
		{"elasti-resolver", ownTable(resolver)},
		{"libraries", libraryTable(libraries)},
	} {
		if page, err = generated.Replace(page, begin(section.name), section.table, end(section.name)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return map[string][]byte{path: page}, nil
}
