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
	"regexp"
	"strings"
)

// begin and end return the lines of the page between which a table is.
func begin(name string) string {
	return "<!-- " + name + ": written by hack/metricsreference -->\n"
}

func end(name string) string { return "<!-- end of " + name + " -->\n" }

// ownTable returns the table of metrics of the product.
func ownTable(metrics []metric) string {
	var table strings.Builder
	table.WriteString("\n| metric | kind | labels | what |\n| --- | --- | --- | --- |\n")
	for _, m := range metrics {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", m.name, m.kind, labelsOf(m), cell(m.help))
	}
	table.WriteString("\n")
	return table.String()
}

// libraryTable returns the table of metrics whose text is that of libraries. Nothing of
// it is a word of the product, so it stands in backticks.
func libraryTable(metrics []metric) string {
	var table strings.Builder
	table.WriteString("\n| metric | labels | help |\n| --- | --- | --- |\n")
	for _, m := range metrics {
		fmt.Fprintf(&table, "| `%s` | %s | `%s` |\n", m.name, labelsOf(m), strings.ReplaceAll(cell(stability.ReplaceAllString(m.help, "")), "`", "'"))
	}
	table.WriteString("\n")
	return table.String()
}

// stability is what the libraries put before the help of a metric.
var stability = regexp.MustCompile(`^\[[A-Z]+\] `)

func labelsOf(m metric) string {
	if len(m.labels) == 0 {
		return ""
	}
	return "`" + strings.Join(m.labels, "`, `") + "`"
}

// cell returns a text as a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
