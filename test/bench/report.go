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
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// report collects what a benchmark measures: rows of a table, and key figures.
// For use by one goroutine.
type report struct {
	rows   []row
	values map[string]float64
}

// row is one line of the table: values of one quantity in one unit.
type row struct {
	what, unit string
	values     []float64
}

func newReport() *report { return &report{values: make(map[string]float64)} }

// durations adds a row of durations, in milliseconds.
func (r *report) durations(what string, durations []time.Duration) {
	values := make([]float64, 0, len(durations))
	for _, duration := range durations {
		values = append(values, milliseconds(duration))
	}
	r.row(what, "ms", values)
}

// row adds a row of the table.
func (r *report) row(what, unit string, values []float64) {
	r.rows = append(r.rows, row{what: what, unit: unit, values: values})
}

// set sets a key figure.
func (r *report) set(key string, value float64) { r.values[key] = value }

// print writes the table and the key figures.
func (r *report) print(destination io.Writer) error {
	table := tabwriter.NewWriter(destination, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "n\tmedian\tp99\tmin\tmax\tunit\t  what\n")
	for _, row := range r.rows {
		fmt.Fprintf(table, "%d\t%.4g\t%.4g\t%.4g\t%.4g\t%s\t  %s\n", len(row.values),
			quantile(row.values, 0.5), quantile(row.values, 0.99), quantile(row.values, 0), quantile(row.values, 1), row.unit, row.what)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(r.values)) {
		fmt.Fprintf(destination, "%s = %.4g\n", key, r.values[key])
	}
	return nil
}

// mergeInto writes the key figures into a file that keeps its other ones.
func (r *report) mergeInto(path string) error {
	values := make(map[string]float64)
	content, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(content, &values); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	maps.Copy(values, r.values)
	if content, err = json.MarshalIndent(values, "", "  "); err != nil {
		return fmt.Errorf("encoding the key figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}

// quantile is the smallest of the values that a part q of them is not above:
// with few values, p99 is the largest. It is NaN without values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

func durationQuantile(durations []time.Duration, q float64) float64 {
	values := make([]float64, 0, len(durations))
	for _, duration := range durations {
		values = append(values, milliseconds(duration))
	}
	return quantile(values, q)
}

func milliseconds(duration time.Duration) float64 {
	return float64(duration) / float64(time.Millisecond)
}
