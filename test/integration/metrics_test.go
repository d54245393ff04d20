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

package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// What a server serves of its own is in the reference, with its kind: what registers a
// metric, and when, makes no difference.
func TestMetricsOfTheServerAreInTheReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := atServer(t.Context(), t, shared.Server, "/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for name, family := range families {
		if !strings.HasPrefix(name, "elasti_") {
			continue
		}
		own++
		row := "| `" + name + "` | " + strings.ToLower(family.GetType().String()) + " |"
		if !strings.Contains(string(page), "\n"+row) {
			t.Errorf("there is no row %s in docs/metrics.md", row)
		}
	}
	if own < 10 {
		t.Errorf("the server has %d metrics of its own, want those of the controller too", own)
	}
}
