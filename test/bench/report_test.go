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
	"testing"
)

func TestQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for _, test := range []struct{ q, want float64 }{{0, 1}, {0.2, 1}, {0.5, 3}, {0.8, 4}, {0.99, 5}, {1, 5}} {
		if got := quantile(values, test.q); got != test.want {
			t.Errorf("quantile %g is %g, want %g", test.q, got, test.want)
		}
	}
	if values[0] != 5 {
		t.Error("the values were sorted in place")
	}
}

func TestMergeKeepsTheKeysOfOtherBenchmarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results", "bench.json")
	first := newReport()
	first.set("a", 1)
	first.set("b", 2)
	second := newReport()
	second.set("b", 3)
	for _, report := range []*report{first, second} {
		if err := report.mergeInto(path); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]float64
	if err := json.Unmarshal(content, &values); err != nil {
		t.Fatal(err)
	}
	if len(values) != 2 || values["a"] != 1 || values["b"] != 3 {
		t.Errorf("the file holds %v", values)
	}
}
