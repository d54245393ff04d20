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

// Package expression bounds what the regular expressions of tenants cost. Go
// matches in linear time, but a counted repetition makes a program of millions of
// instructions out of few letters: memory for as long as it is kept, and processor
// time for each text that is matched. Validation and those that compile go by the
// same bound.
//
// It does not know what an expression is matched against. Begin with Budget.
package expression

import (
	"fmt"
	"regexp/syntax"
)

// MaxCost is what the expressions of one ElastiService, or of one query, may cost
// together, which is far more than those that people write do.
const MaxCost = 10000

// runesPerInstruction is how many runes of a character class take as much memory as
// an instruction.
const runesPerInstruction = 16

// Cost returns about how many instructions the program of an expression has, the
// memory of its character classes included. It compiles nothing, and costs little
// itself.
func Cost(expression string) (int, error) {
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0, err
	}
	return instructions(parsed) + runes(parsed)/runesPerInstruction, nil
}

// Budget is what is left for the expressions of one ElastiService, or of one query.
// The zero value has spent nothing.
type Budget struct{ spent int }

// Spend takes an expression's cost from the budget. It fails for one that cannot be
// parsed, and for one that costs more than is left, which is then not taken.
func (b *Budget) Spend(expression string) error {
	cost, err := Cost(expression)
	if err != nil {
		return err
	}
	if cost > MaxCost-b.spent {
		return fmt.Errorf("is too costly, %d of %d are left for it: repeat and enumerate less", MaxCost-b.spent, MaxCost)
	}
	b.spent += cost
	return nil
}

// instructions returns about how many instructions an expression is compiled to.
// The parser rejects expressions for which it could overflow.
func instructions(parsed *syntax.Regexp) int {
	below := 0
	for _, sub := range parsed.Sub {
		below += instructions(sub)
	}
	switch parsed.Op {
	case syntax.OpLiteral:
		return len(parsed.Rune)
	case syntax.OpConcat:
		return below
	case syntax.OpAlternate:
		return below + len(parsed.Sub)
	case syntax.OpCapture:
		return below + 2
	case syntax.OpRepeat:
		// x{2,4} is compiled as xx(x(x)?)?, and x{2,} as xx+.
		if parsed.Max < 0 {
			return below*max(parsed.Min, 1) + 1
		}
		return below*parsed.Min + (below+1)*(parsed.Max-parsed.Min)
	default:
		return below + 1
	}
}

// runes returns how many runes the character classes and texts of an expression
// hold. Repetitions share them.
func runes(parsed *syntax.Regexp) int {
	count := len(parsed.Rune)
	for _, sub := range parsed.Sub {
		count += runes(sub)
	}
	return count
}
