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
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "Fail when the README is not current, instead of writing it.")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: chartreadme [--check] CHART")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(chart string, check bool) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return fmt.Errorf("reading the values: %w", err)
	}
	table, err := valuesTable(values)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(chart, "values.yaml"), err)
	}
	path := filepath.Join(chart, "README.md")
	previous, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the README: %w", err)
	}
	current, err := replaceTable(previous, table)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case bytes.Equal(previous, current):
		return nil
	case check:
		return errors.New(path + " is not what its values.yaml says, run 'make generate'")
	}
	if err := os.WriteFile(path, current, 0o644); err != nil {
		return fmt.Errorf("writing the README: %w", err)
	}
	return nil
}
