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

package expression

import (
	"regexp/syntax"
	"strings"
	"testing"
)

// The estimate is that of the compiler, or a little more, and never much less.
func TestCostIsThatOfTheProgram(t *testing.T) {
	for _, expression := range []string{
		`/health`, `^/health(z|check)?$`, `/v[0-9]+/users/[^/]+`, `(?i)kube-probe/.*`, `.{1000}`, `(a?){500}`, `(ab|c){2,7}`, `x{3,}`,
		`a*b+?c??`, `((a{10}){10}){10}`, `[a-z]{1,63}(\.[a-z]{1,63}){0,4}`, `\bword\b`, `()`, `a|b|cd|ef`, `(?:)`, ``,
	} {
		cost, err := Cost(expression)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := syntax.Parse(expression, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		// A program begins and ends with an instruction of its own.
		if compiled := len(program.Inst); cost < compiled-2 && cost < compiled*9/10 || cost > 2*compiled+8 {
			t.Errorf("%q costs %d, and has %d instructions", expression, cost, compiled)
		}
	}
}

func TestBudgetIsForAllExpressionsTogether(t *testing.T) {
	var budget Budget
	for range 12 {
		if err := budget.Spend(".{1000}"); err == nil {
			continue
		}
		return
	}
	t.Error("twelve expressions of a thousand repetitions are within the budget")
}

func TestBudgetOfCostlyExpressions(t *testing.T) {
	for _, expression := range []string{
		strings.Repeat(".{1000}", 20), strings.Repeat(`\pL`, 1300), strings.Repeat(`(a?){1000}`, 20), `((((((((a{9}){9}){9}){1000}`,
	} {
		var budget Budget
		if err := budget.Spend(expression); err == nil {
			t.Errorf("%.40q is within the budget", expression)
		}
		if err := budget.Spend(`/health`); err != nil {
			t.Errorf("what was rejected was spent: %v", err)
		}
	}
}
