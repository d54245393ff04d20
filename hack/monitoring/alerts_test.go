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

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/truefoundry/elasti-apiserver/test/repository"
)

// runbooks is the page with the runbook of each alert.
const runbooks = "https://github.com/truefoundry/elasti-apiserver/blob/main/docs/alerts.md#"

// rule is an alert.
type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

// testFile has the tests of promtool.
type testFile struct {
	Tests []struct {
		Expressions []struct {
			Expr    string `yaml:"expr"`
			Samples []struct {
				Labels string `yaml:"labels"`
			} `yaml:"exp_samples"`
		} `yaml:"promql_expr_test"`
	} `yaml:"tests"`
}

// read returns a file of the repository.
func read(t *testing.T, path string) []byte {
	t.Helper()
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func alerts(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	if err := yaml.Unmarshal(read(t, "artifacts/alerts/elasti.rules.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("there are no alerts")
	}
	return all
}

func TestEachAlertSaysWhatToDo(t *testing.T) {
	page := string(read(t, "docs/alerts.md"))
	for _, alert := range alerts(t) {
		if severity := alert.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q, want critical or warning", alert.Alert, severity)
		}
		if alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", alert.Alert)
		}
		if got, want := alert.Annotations["runbook_url"], runbooks+strings.ToLower(alert.Alert); got != want {
			t.Errorf("%s has the runbook %s, want %s", alert.Alert, got, want)
		}
		_, runbook, found := strings.Cut(page, "\n## "+alert.Alert+"\n")
		if runbook, _, _ = strings.Cut(runbook, "\n## "); !found || !strings.Contains(runbook, "\n1. ") {
			t.Errorf("docs/alerts.md has no section %s with steps", alert.Alert)
		}
	}
	for _, heading := range regexp.MustCompile(`(?m)^## (Elasti\w+)$`).FindAllStringSubmatch(page, -1) {
		if !slices.ContainsFunc(alerts(t), func(alert rule) bool { return alert.Alert == heading[1] }) {
			t.Errorf("docs/alerts.md has a runbook of %s, which is no alert", heading[1])
		}
	}
}

// What an expression names exists, and what a text names is a label that the alert has.
func TestAlertsUseMetricsAndLabelsThatExist(t *testing.T) {
	reference := string(read(t, "docs/metrics.md"))
	label := regexp.MustCompile(`\$labels\.(\w+)`)
	parse := parser.NewParser(parser.Options{})
	for _, alert := range alerts(t) {
		expression, err := parse.ParseExpr(alert.Expr)
		if err != nil {
			t.Errorf("%s: %v", alert.Alert, err)
			continue
		}
		grouping := map[string]bool{}
		parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
			switch node := node.(type) {
			case *parser.VectorSelector:
				if err := checkSelector(reference, node); err != nil {
					t.Errorf("%s: %v", alert.Alert, err)
				}
			case *parser.AggregateExpr:
				for _, name := range node.Grouping {
					grouping[name] = true
				}
			}
			return nil
		})
		for _, text := range alert.Annotations {
			for _, used := range label.FindAllStringSubmatch(text, -1) {
				if !grouping[used[1]] {
					t.Errorf("%s: %q has the label %s, by which the expression does not aggregate", alert.Alert, text, used[1])
				}
			}
		}
	}
}

// ofObjects are the labels whose values are names of objects.
var ofObjects = map[string]bool{"namespace": true, "service": true, "source": true, "crd_name": true}

// checkSelector reports what a selector names and the reference of metrics does not have.
func checkSelector(reference string, selector *parser.VectorSelector) error {
	name := selector.Name
	_, row, found := strings.Cut(reference, "\n| `"+name+"` |")
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, isPart := strings.CutSuffix(name, suffix); !found && isPart {
			_, row, found = strings.Cut(reference, "\n| `"+base+"` | histogram |")
		}
	}
	if !found {
		return fmt.Errorf("%s is not in docs/metrics.md", name)
	}
	row, _, _ = strings.Cut(row, "\n")
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name == "__name__" {
			continue
		}
		if !strings.Contains(row, "`"+matcher.Name+"`") {
			return fmt.Errorf("%s has no label %s", name, matcher.Name)
		}
		if ofObjects[matcher.Name] {
			continue
		}
		for value := range strings.SplitSeq(matcher.Value, "|") {
			if !strings.Contains(row, value) {
				return fmt.Errorf("docs/metrics.md does not say that %s of %s can be %s", matcher.Name, name, value)
			}
		}
	}
	return nil
}

// promtool runs the tests; that there are any is for this one to say.
func TestEachAlertIsTestedToFireAndToBeSilent(t *testing.T) {
	var file testFile
	if err := yaml.Unmarshal(read(t, "artifacts/alerts/elasti.rules.test.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, expression := range test.Expressions {
			_, name, _ := strings.Cut(expression.Expr, `alertname="`)
			name, _, _ = strings.Cut(name, `"`)
			if len(expression.Samples) == 0 {
				silent[name] = true
			}
			for _, sample := range expression.Samples {
				fires[name] = strings.Contains(sample.Labels, `alertname="`+name+`", alertstate="firing"`)
			}
		}
	}
	for _, alert := range alerts(t) {
		if !fires[alert.Alert] || !silent[alert.Alert] {
			t.Errorf("%s: tested to fire: %v, to be silent: %v", alert.Alert, fires[alert.Alert], silent[alert.Alert])
		}
	}
}
