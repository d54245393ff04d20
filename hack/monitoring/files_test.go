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
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func TestThePrometheusRuleHasTheRules(t *testing.T) {
	var want, got map[string]any
	if err := yaml.Unmarshal(read(t, "artifacts/alerts/elasti.rules.yaml"), &want); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(read(t, "artifacts/alerts/prometheusrule.yaml"), &got); err != nil {
		t.Fatal(err)
	}
	if got["kind"] != "PrometheusRule" || !reflect.DeepEqual(got["spec"], any(want)) {
		t.Errorf("the object is\n%v\nwant the rules\n%v", got, want)
	}
}

func TestFilesAreMadeOfTheRules(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "alerts"), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(rules string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, rulesFile), []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# Rules.\ngroups:\n  - name: shop\n\n    rules: []\n")
	made, err := files(folder)
	if err != nil {
		t.Fatal(err)
	}
	object := string(made[filepath.Join(folder, "alerts", "prometheusrule.yaml")])
	if want := "spec:\n  groups:\n    - name: shop\n\n      rules: []\n"; !strings.HasSuffix(object, want) {
		t.Errorf("the object is\n%s\nwant it to end with\n%s", object, want)
	}
	if board := made[filepath.Join(folder, "dashboards", "elasti.json")]; len(made) != 2 || !json.Valid(board) {
		t.Errorf("%d files are made, the dashboard is\n%s", len(made), board)
	}
	write("rules: []\n")
	if _, err := files(folder); err == nil {
		t.Error("rules without groups are accepted")
	}
}

// grafanaVariables are what stands for a value in an expression.
var grafanaVariables = strings.NewReplacer(
	"$__rate_interval", "5m", "$__range", "6h", "$core_price", "0.03", "$memory_price", "0.004", "$namespace", "shop", "$service", "cart",
)

// Prometheus accepts each expression of the dashboard, and has what it names.
func TestTheDashboardUsesMetricsThatExist(t *testing.T) {
	var board struct {
		Panels []struct {
			Title      string                   `json:"title"`
			Type       string                   `json:"type"`
			Datasource struct{ UID string }     `json:"datasource"`
			GridPos    struct{ X, Y, W, H int } `json:"gridPos"`
			Targets    []struct{ Expr string }  `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct{ Name string } `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(read(t, "artifacts/dashboards/elasti.json"), &board); err != nil {
		t.Fatal(err)
	}
	reference := string(read(t, "docs/metrics.md"))
	parse := parser.NewParser(parser.Options{})
	places := map[[2]int]string{}
	expressions := 0
	for _, panel := range board.Panels {
		place := [2]int{panel.GridPos.X, panel.GridPos.Y}
		if other, taken := places[place]; taken || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("the panel %s is at %v, where %q is, or out of the grid", panel.Title, panel.GridPos, other)
		}
		places[place] = panel.Title
		if panel.Type == "row" {
			continue
		}
		if panel.Datasource.UID != "${datasource}" || len(panel.Targets) == 0 {
			t.Errorf("the panel %s has the data source %q and %d queries", panel.Title, panel.Datasource.UID, len(panel.Targets))
		}
		for _, target := range panel.Targets {
			expressions++
			expression, err := parse.ParseExpr(grafanaVariables.Replace(target.Expr))
			if err != nil {
				t.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
				continue
			}
			parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
				if selector, ok := node.(*parser.VectorSelector); ok {
					if err := checkSelector(reference, selector); err != nil {
						t.Errorf("%s: %v", panel.Title, err)
					}
				}
				return nil
			})
		}
	}
	if expressions < 20 || len(board.Templating.List) != len(variables()) {
		t.Errorf("the dashboard has %d expressions and the variables %v", expressions, board.Templating.List)
	}
}
