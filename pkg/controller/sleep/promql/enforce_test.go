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
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

func TestEnforce(t *testing.T) {
	for query, want := range map[string]string{
		`up`:                                `up{namespace="shop"}`,
		`up{}`:                              `up{namespace="shop"}`,
		`up{job="a"} # {namespace="b"}`:     `up{job="a",namespace="shop"}`,
		`{job="a"}`:                         `{job="a",namespace="shop"}`,
		`{__name__=~".+"}`:                  `{__name__=~".+",namespace="shop"}`,
		`up{namespace="shop"}`:              `up{namespace="shop",namespace="shop"}`,
		`up{namespace=~"shop|other"}`:       `up{namespace="shop",namespace=~"shop|other"}`,
		`up{namespace!="other"}`:            `up{namespace!="other",namespace="shop"}`,
		`sum(rate(a[1m])) or vector(0)`:     `sum(rate(a{namespace="shop"}[1m])) or vector(0)`,
		`sum by (job) (a) / on (job) b`:     `sum by (job) (a{namespace="shop"}) / on (job) b{namespace="shop"}`,
		`topk(scalar(a), b)`:                `topk(scalar(a{namespace="shop"}), b{namespace="shop"})`,
		`max_over_time(rate(a[1m])[5m:])`:   `max_over_time(rate(a{namespace="shop"}[1m])[5m:])`,
		`a offset 5m`:                       `a{namespace="shop"} offset 5m`,
		`a @ end()`:                         `a{namespace="shop"} @ end()`,
		`-(a unless b) > bool 1`:            `-(a{namespace="shop"} unless b{namespace="shop"}) > bool 1`,
		`absent(a)`:                         `absent(a{namespace="shop"})`,
		`label_replace(a, "b", "", "", "")`: `label_replace(a{namespace="shop"}, "b", "", "", "")`,
		`{"a.b"}`:                           `{__name__="a.b",namespace="shop"}`,
		`quantile(0.9, a)`:                  `quantile(0.9, a{namespace="shop"})`,
		`vector(1)`:                         `vector(1)`,
		`1`:                                 `1`,
	} {
		if got, err := Enforce(query, "namespace", "shop"); got != want || err != nil {
			t.Errorf("%s: got %s, %v, want %s", query, got, err, want)
		}
	}
}

// A query whose result would always be empty is rejected: "or vector(0)" would turn
// that into a number, and the target would seem idle.
func TestEnforceRejectsSelectorsOfOtherNamespaces(t *testing.T) {
	for query, want := range map[string]string{
		`up{namespace="other"} or vector(0)`: `namespace="other"`,
		`up{namespace!="shop"}`:              `namespace!="shop"`,
		`up{namespace=~"other.*"}`:           `namespace=~"other.*"`,
		`a or b{namespace=""}`:               `namespace=""`,
		`sum(`:                               "parse error",
		`up{`:                                "parse error",
		`rate(a)`:                            "parse error",
		``:                                   "parse error",
		`info(up)`:                           "info()",
		`info(up, {job="a"})`:                "info()",
		`WITH (a = b) a`:                     "parse error",
		strings.Repeat("-", 16000) + "a":     "parentheses and signs",
		strings.Repeat("a^", 8000) + "a":     "levels deep",
		`a{` + strings.Repeat(`b=~"c",`, 1000) + `}`:      "regular expressions",
		`a{b=~"` + strings.Repeat(".{1000}", 1000) + `"}`: "too costly",
		`a{b=~"(", c !~ # d
			"` + strings.Repeat(`.\x7b1000}`, 1000) + `"}`: "too costly",
	} {
		if got, err := Enforce(query, "namespace", "shop"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %s, %v, want an error with %q", query, got, err, want)
		}
	}
}

// selectorsOf finds the selectors of a query wherever they are, without the
// parser's own way to visit them.
func selectorsOf(value reflect.Value, found *[]*parser.VectorSelector) {
	switch value.Kind() {
	case reflect.Interface, reflect.Pointer:
		if value.IsNil() {
			return
		}
		if value.CanInterface() {
			if selector, ok := value.Interface().(*parser.VectorSelector); ok {
				*found = append(*found, selector)
				return
			}
		}
		selectorsOf(value.Elem(), found)
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				selectorsOf(value.Field(i), found)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			selectorsOf(value.Index(i), found)
		}
	}
}

// No selector of what a server gets is without the matcher, whatever the query.
func FuzzEnforce(f *testing.F) {
	for _, seed := range []string{
		`sum(rate(a{b="c"}[1m])) or vector(0)`, `max_over_time(rate(a[1m])[5m:1m] @ 12 offset 1m)`, `{__name__=~".+"}`, `{"a.b","c.d"="e"}`,
		`topk(scalar(a), b) + on (c) group_left (d) e{f!~"g"}`, `a{namespace="other"}`, `info(a, {b="c"})`, `limit_ratio(0.1, a)`, "a{b=`c`} # d",
		`{__name__="a",__name__=~"b"}`, `up{namespace="shop\",namespace=\"other"}`, `a @ start() > bool b offset -1h`, `histogram_quantile(0.9, rate(a[1m]))`,
	} {
		f.Add(seed, "shop")
	}
	f.Fuzz(func(t *testing.T, query, namespace string) {
		enforced, err := Enforce(query, "namespace", namespace)
		if err != nil {
			return
		}
		expression, err := newParser().ParseExpr(enforced)
		if err != nil {
			t.Fatalf("%q became %q, which cannot be parsed: %v", query, enforced, err)
		}
		var selectors []*parser.VectorSelector
		selectorsOf(reflect.ValueOf(expression), &selectors)
		for _, selector := range selectors {
			restricted := false
			for _, matcher := range selector.LabelMatchers {
				restricted = restricted || matcher.Type == labels.MatchEqual && matcher.Name == "namespace" && matcher.Value == namespace
			}
			if !restricted {
				t.Errorf("%q became %q, where %s is not restricted", query, enforced, selector)
			}
		}
	})
}
