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
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.Bool("check", false, "Fail when the page is not current, instead of writing it.")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: metricsreference [--check] PAGE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string, check bool) error {
	server, libraries, err := serverMetrics()
	if err != nil {
		return fmt.Errorf("the metrics of elasti-apiserver: %w", err)
	}
	resolver, err := resolverMetrics()
	if err != nil {
		return fmt.Errorf("the metrics of elasti-resolver: %w", err)
	}
	previous, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the page: %w", err)
	}
	current := previous
	for _, section := range []struct {
		name  string
		table string
	}{
		{"elasti-apiserver", ownTable(server)},
		{"elasti-resolver", ownTable(resolver)},
		{"libraries", libraryTable(libraries)},
	} {
		if current, err = replaceTable(current, section.name, section.table); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	switch {
	case bytes.Equal(previous, current):
		return nil
	case check:
		return errors.New(path + " is not what the code registers, run 'make generate'")
	}
	if err := os.WriteFile(path, current, 0o644); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}
