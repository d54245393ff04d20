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

// Package promql restricts queries to the series of one namespace, by a matcher in each
// of their selectors.
//
// It knows nothing of the server that evaluates them. Begin with Enforce.
package promql

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/truefoundry/elasti-apiserver/pkg/expression"
)

// Bounds of a query. Parsing and printing take the square of how deeply it is
// nested, by parentheses, signs and operators, and each regular expression is
// compiled: what all of them cost is bounded by their budget.
const (
	maxDepth       = 200
	maxOperators   = 500
	maxExpressions = 50
)

var (
	errDeep   = fmt.Errorf("the query is nested more than %d levels deep: write it in a simpler way", maxDepth)
	errMany   = fmt.Errorf("the query has more than %d parentheses and signs, or %d regular expressions: write it in a simpler way", maxOperators, maxExpressions)
	errInfo   = errors.New("info() cannot be restricted to a namespace: use * on (…) group_left (…) instead")
	errOffset = errors.New("an offset cannot be in parentheses: write a duration, such as offset 5m, or (offset) for the metric of this name")
	errUnsure = errors.New("the query cannot be restricted to a namespace: write it in a simpler way")
)

// Parse checks a query. The error says where it is wrong, and contains only parts of
// the query.
func Parse(query string) error {
	_, err := parse(query)
	return err
}

// Enforce returns a query whose selectors all select only series whose label has
// a value. It fails when the query cannot be parsed, and when a selector excludes
// that value of the label: its result would be empty, which "or vector(0)" turns into
// a number. The error contains only parts of the query.
func Enforce(query, label, value string) (string, error) {
	expression, err := parse(query)
	if err != nil {
		return "", err
	}
	enforced, err := labels.NewMatcher(labels.MatchEqual, label, value)
	if err != nil {
		return "", fmt.Errorf("creating the matcher: %w", err)
	}
	if err := visit(expression, func(selector *parser.VectorSelector) error { return add(selector, enforced) }); err != nil {
		return "", err
	}
	text := expression.String()
	if err := verify(text, enforced); err != nil {
		return "", err
	}
	return text, nil
}

// parse parses a query, unless it exceeds the bounds.
func parse(query string) (parser.Expr, error) {
	nesting := strings.Count(query, "(") + strings.Count(query, "-") + strings.Count(query, "+")
	if nesting > maxOperators || strings.Count(query, "~") > maxExpressions {
		return nil, errMany
	}
	if err := checkExpressions(query); err != nil {
		return nil, err
	}
	if computesOffset(query) {
		return nil, errOffset
	}
	return newParser().ParseExpr(query)
}

// checkExpressions fails when the regular expressions of a query are too costly: the
// parser compiles each. Expressions that cannot be parsed are for the parser to report.
func checkExpressions(query string) error {
	var budget expression.Budget
	previous := parser.ItemType(0)
	for item := range items(query) {
		matches := previous == parser.EQL_REGEX || previous == parser.NEQ_REGEX
		previous = item.Typ
		if !matches || item.Typ != parser.STRING {
			continue
		}
		text, err := strutil.Unquote(item.Val)
		if err != nil {
			continue
		}
		if _, err := expression.Cost(text); err != nil {
			continue
		}
		if err := budget.Spend(text); err != nil {
			return fmt.Errorf("a regular expression of the query %w", err)
		}
	}
	return nil
}

// computesOffset reports whether a query has an offset in parentheses. The parser rejects
// each, as expressions for durations are not enabled, but on some of those with a sign it
// panics, recovers, and writes the stack to the standard error. A metric that is called
// offset looks the same to a lexer.
func computesOffset(query string) bool {
	offset := false
	for item := range items(query) {
		switch item.Typ {
		case parser.OFFSET:
			offset = true
		case parser.ADD, parser.SUB:
		case parser.LEFT_PAREN:
			if offset {
				return true
			}
		default:
			offset = false
		}
	}
	return false
}

// items returns the lexical items of a query, without comments, as far as it can be read.
func items(query string) iter.Seq[parser.Item] {
	return func(yield func(parser.Item) bool) {
		lexer, item := parser.Lex(query), parser.Item{}
		for lexer.NextItem(&item); item.Typ != parser.EOF && item.Typ != parser.ERROR; lexer.NextItem(&item) {
			if item.Typ != parser.COMMENT && !yield(item) {
				return
			}
		}
	}
}

// newParser returns a parser of PromQL with the default features of servers and
// experimental functions, which select no series by other means.
func newParser() parser.Parser {
	return parser.NewParser(parser.Options{EnableExperimentalFunctions: true})
}

// add adds a matcher to a selector.
func add(selector *parser.VectorSelector, enforced *labels.Matcher) error {
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name == enforced.Name && !matcher.Matches(enforced.Value) {
			return fmt.Errorf("%s selects other series than those with %s, which are all that the query may see", matcher, enforced)
		}
	}
	selector.LabelMatchers = append(slices.Clip(selector.LabelMatchers), enforced)
	return nil
}

// verify fails when the text of a query, which is what servers get, does not parse as
// the restricted query.
func verify(text string, enforced *labels.Matcher) error {
	expression, err := newParser().ParseExpr(text)
	if err != nil || expression.String() != text {
		return errUnsure
	}
	return visit(expression, func(selector *parser.VectorSelector) error {
		if !slices.ContainsFunc(selector.LabelMatchers, func(m *labels.Matcher) bool {
			return m.Type == enforced.Type && m.Name == enforced.Name && m.Value == enforced.Value
		}) {
			return errUnsure
		}
		return nil
	})
}

// visit calls a function for each selector of a query.
func visit(expression parser.Expr, each func(*parser.VectorSelector) error) error {
	var failed error
	parser.Inspect(expression, func(node parser.Node, path []parser.Node) error {
		if len(path) > maxDepth {
			failed = errDeep
			return failed
		}
		switch node := node.(type) {
		case *parser.VectorSelector:
			failed = each(node)
		case *parser.Call:
			if node.Func.Name == "info" {
				// It selects series of its own. With a matcher it would drop
				// series without a match, which looks like less use.
				failed = errInfo
			}
		}
		return failed
	})
	return failed
}
