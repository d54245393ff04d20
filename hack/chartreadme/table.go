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
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The lines of the README between which the table is.
const (
	begin = "<!-- values: written by hack/chartreadme -->\n"
	end   = "<!-- end of values -->\n"
)

// valuesTable returns sections with tables of all values of a values.yaml. A value whose
// fields have comments is explained by these; any other one needs a comment of its own.
func valuesTable(source []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(source, &document); err != nil {
		return "", fmt.Errorf("reading the values: %w", err)
	}
	if len(document.Content) != 1 || document.Content[0].Kind != yaml.MappingNode {
		return "", errors.New("the values are no mapping")
	}
	var table strings.Builder
	var errs []error
	for key, value := range fields(document.Content[0]) {
		rows, err := rowsOf(key.Value, key, value)
		errs = append(errs, err)
		fmt.Fprintf(&table, "\n### %s\n", key.Value)
		if isGroup(value) {
			fmt.Fprintf(&table, "\n%s\n", comment(key))
		}
		table.WriteString("\n| value | default | what |\n| --- | --- | --- |\n")
		table.WriteString(rows)
	}
	table.WriteString("\n")
	return table.String(), errors.Join(errs...)
}

// rowsOf returns the rows of a value, and of its fields where these have comments.
func rowsOf(path string, key, value *yaml.Node) (string, error) {
	if isGroup(value) {
		var rows strings.Builder
		var errs []error
		for field, fieldValue := range fields(value) {
			text, err := rowsOf(path+"."+field.Value, field, fieldValue)
			rows.WriteString(text)
			errs = append(errs, err)
		}
		return rows.String(), errors.Join(errs...)
	}
	what := comment(key)
	if what == "" {
		return "", fmt.Errorf("line %d: %s has no comment", key.Line, path)
	}
	standard, err := inOneLine(value)
	if err != nil {
		return "", fmt.Errorf("line %d: %s: %w", value.Line, path, err)
	}
	return fmt.Sprintf("| `%s` | %s | %s |\n", path, standard, strings.ReplaceAll(what, "|", `\|`)), nil
}

// isGroup reports whether a value is explained by the comments of its fields.
func isGroup(value *yaml.Node) bool {
	for key, field := range fields(value) {
		if comment(key) != "" || isGroup(field) {
			return true
		}
	}
	return false
}

// fields returns the keys and values of a mapping, and nothing for any other value.
func fields(value *yaml.Node) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if value.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i < len(value.Content); i += 2 {
			if !yield(value.Content[i], value.Content[i+1]) {
				return
			}
		}
	}
}

// comment returns the comment above a key as one line.
func comment(key *yaml.Node) string {
	var words []string
	for line := range strings.Lines(key.HeadComment) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// inOneLine returns a value as code in one line, or nothing when it is null.
func inOneLine(node *yaml.Node) (string, error) {
	var value any
	if err := node.Decode(&value); err != nil {
		return "", fmt.Errorf("decoding the value: %w", err)
	}
	if value == nil {
		return "", nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("encoding the value: %w", err)
	}
	return "`" + string(text) + "`", nil
}
