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

package promql

import (
	"os"
	"path/filepath"
	"testing"
)

// The parser of Prometheus panics on some offsets, and writes the stack to the standard
// error, which tenants could fill with their queries.
func TestQueriesThatAreRejectedWriteNothing(t *testing.T) {
	output, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	stderr := os.Stderr
	t.Cleanup(func() { os.Stderr = stderr })
	os.Stderr = output
	for _, query := range []string{
		`x[1h] offset -(1)`, `x offset +(5m)`, `x offset - ((1))`, `x offset -(5/0)`, `x offset - # comment
			(1)`, `and offset -(1)`, `sum(rate(x[5m] OFFSET -(-1)))`, `x offset (5m)`, `x offset -(5m+1)`,
	} {
		if _, err := Enforce(query, "namespace", "shop"); err == nil {
			t.Errorf("%s is accepted", query)
		}
		if err := Parse(query); err == nil {
			t.Errorf("%s is accepted by Parse", query)
		}
	}
	written, err := os.ReadFile(output.Name())
	if err != nil || len(written) > 0 {
		t.Errorf("wrote %.200q (error: %v), want nothing", written, err)
	}
}

func TestOffsetsWithoutParenthesesAreAccepted(t *testing.T) {
	for _, query := range []string{
		`x offset 5m`, `x offset -5m`, `rate(x[5m] offset 1d) + (y)`, `x offset 5m - (y)`, `sum by (offset) (x)`,
		`offset`, `(offset) - (1)`, `x{offset="a"} - (1)`,
	} {
		if _, err := Enforce(query, "namespace", "shop"); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
}
