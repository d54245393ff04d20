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

// Command monitoring writes what is made for Prometheus and Grafana: a PrometheusRule of
// the rules with the alerts, and the dashboard.
//
//	monitoring [--check] FOLDER
//
// The folder has alerts/elasti.rules.yaml. With --check it writes nothing, and fails when
// a file is not what it would write.
//
// It knows nothing of what alerts say. Begin with files.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// rulesFile has the alerts.
const rulesFile = "alerts/elasti.rules.yaml"

// header is the PrometheusRule before its rules.
const header = `# Made of elasti.rules.yaml by hack/monitoring. Do not edit.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: elasti
  labels:
    app.kubernetes.io/part-of: elasti
spec:
  groups:
`

func main() {
	check := flag.Bool("check", false, "Fail when a file is not current, instead of writing it.")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: monitoring [--check] FOLDER")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder string, check bool) error {
	made, err := files(folder)
	if err != nil {
		return err
	}
	var stale []error
	for name, current := range made {
		path := filepath.Join(folder, name)
		previous, err := os.ReadFile(path)
		switch {
		case err == nil && bytes.Equal(previous, current):
		case check:
			stale = append(stale, fmt.Errorf("%s is not current, run 'make generate'", path))
		default:
			if err := write(path, current); err != nil {
				return err
			}
		}
	}
	return errors.Join(stale...)
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// files returns what is made, by its path in the folder.
func files(folder string) (map[string][]byte, error) {
	rules, err := os.ReadFile(filepath.Join(folder, rulesFile))
	if err != nil {
		return nil, fmt.Errorf("reading the rules: %w", err)
	}
	object, err := prometheusRule(rules)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rulesFile, err)
	}
	board, err := dashboardJSON()
	if err != nil {
		return nil, fmt.Errorf("making the dashboard: %w", err)
	}
	return map[string][]byte{"alerts/prometheusrule.yaml": object, "dashboards/elasti.json": board}, nil
}

// prometheusRule returns a PrometheusRule with the rules of a file.
func prometheusRule(rules []byte) ([]byte, error) {
	_, groups, found := strings.Cut(string(rules), "\ngroups:\n")
	if !found {
		return nil, errors.New(`the line "groups:" is missing`)
	}
	object := bytes.NewBufferString(header)
	for line := range strings.Lines(groups) {
		if line != "\n" {
			object.WriteString("  ")
		}
		object.WriteString(line)
	}
	return object.Bytes(), nil
}
