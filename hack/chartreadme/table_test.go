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
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTableHasEachValue(t *testing.T) {
	table, err := valuesTable([]byte(`# About the file.

# For all.
global:
  image:
    # The | of both.
    registry: ""
  # Labels of
  # all objects.
  labels: {}

# What it needs.
resources:
  limits:
    memory: 1Gi

# How many.
replicas:
`))
	if err != nil {
		t.Fatal(err)
	}
	want := "\n### global\n\nFor all.\n\n| value | default | what |\n| --- | --- | --- |\n" +
		"| `global.image.registry` | `\"\"` | The \\| of both. |\n" +
		"| `global.labels` | `{}` | Labels of all objects. |\n" +
		"\n### resources\n\n| value | default | what |\n| --- | --- | --- |\n" +
		"| `resources` | `{\"limits\":{\"memory\":\"1Gi\"}}` | What it needs. |\n" +
		"\n### replicas\n\n| value | default | what |\n| --- | --- | --- |\n" +
		"| `replicas` |  | How many. |\n\n"
	if table != want {
		t.Errorf("the table is\n%s\nwant\n%s", table, want)
	}
}

func TestValueWithoutACommentIsRejected(t *testing.T) {
	_, err := valuesTable([]byte("# A group.\ngroup:\n  # One.\n  first: 1\n  second: 2\n"))
	if err == nil || !strings.Contains(err.Error(), "line 5: group.second has no comment") {
		t.Errorf("got %v, want that line 5 has no comment", err)
	}
}

func TestReadmeHasTheTable(t *testing.T) {
	chart := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(chart, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("values.yaml", "# How many.\nreplicas: 2\n")
	write("README.md", "Before\n"+begin+"old\n"+end+"after\n")
	made, err := files(chart)
	if err != nil {
		t.Fatal(err)
	}
	text := string(made[filepath.Join(chart, "README.md")])
	if !strings.HasPrefix(text, "Before\n") || !strings.HasSuffix(text, "after\n") || strings.Contains(text, "old") || !strings.Contains(text, "| `replicas` | `2` | How many. |") {
		t.Errorf("the README is\n%s", text)
	}
	write("README.md", "no table\n")
	if _, err := files(chart); err == nil {
		t.Error("a README without a place for the table is accepted")
	}
}
