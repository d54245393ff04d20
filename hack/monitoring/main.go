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
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/truefoundry/elasti-apiserver/hack/generated"
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
	generated.Main("monitoring [--check] FOLDER", files)
}

// files returns what is made in the folder.
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
	return map[string][]byte{
		filepath.Join(folder, "alerts/prometheusrule.yaml"): object,
		filepath.Join(folder, "dashboards/elasti.json"):     board,
	}, nil
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
