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

// Package proberesponse matches requests against the rules of spec.probeResponse,
// by which a resolver responds itself while a target sleeps.
//
// It does not know how a response is written. Begin with Rules.
package proberesponse

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/expression"
)

// Request has the properties that rules match.
type Request struct {
	Method string
	// Path is the path as it was sent, Query the text after the question mark.
	Path, Query string
	// Port is that of the public Service.
	Port int32
	// Values returns the values of a header field, whatever the case of its name.
	Values func(name string) []string
}

// Response is the response of a rule.
type Response struct {
	Status      int
	ContentType string
	Body        []byte
}

// Rules are the compiled rules of one ElastiService. They are safe for
// concurrent use; nil has no rules.
type Rules struct {
	rules []rule
}

type rule struct {
	method   string
	path     matcher
	headers  []named
	query    []named
	response *Response
}

// matcher reports whether a text matches.
type matcher func(text string) bool

type named struct {
	name  string
	value matcher
}

// Compile compiles rules. It returns an error for the rules that cannot be compiled,
// together with the other rules.
func Compile(specs []v1alpha1.ProbeResponseRule) (*Rules, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	compiled := &Rules{}
	var failed []error
	// Rules that an earlier version admitted may exceed the budget.
	var budget expression.Budget
	for i := range specs {
		r, err := compile(&specs[i], &budget)
		if err != nil {
			failed = append(failed, fmt.Errorf("probeResponse[%d]: %w", i, err))
			continue
		}
		compiled.rules = append(compiled.rules, r)
	}
	return compiled, errors.Join(failed...)
}

func compile(spec *v1alpha1.ProbeResponseRule, budget *expression.Budget) (rule, error) {
	r := rule{method: spec.Method, response: responseOf(&spec.Response)}
	var err error
	if spec.Path != nil {
		if r.path, err = pathMatcher(spec.Path, budget); err != nil {
			return rule{}, fmt.Errorf("path: %w", err)
		}
	}
	if r.headers, err = valueMatchers(spec.Headers, budget); err != nil {
		return rule{}, fmt.Errorf("headers: %w", err)
	}
	if r.query, err = valueMatchers(spec.QueryParams, budget); err != nil {
		return rule{}, fmt.Errorf("queryParams: %w", err)
	}
	return r, nil
}

func responseOf(spec *v1alpha1.ProbeResponse) *Response {
	response := &Response{Status: int(spec.Status), ContentType: "text/plain; charset=utf-8", Body: []byte(spec.Body)}
	if trimmed := strings.TrimSpace(spec.Body); strings.HasPrefix(trimmed, "{") && json.Valid(response.Body) {
		response.ContentType = "application/json"
	}
	return response
}

func pathMatcher(spec *v1alpha1.PathMatch, budget *expression.Budget) (matcher, error) {
	switch spec.Type {
	case v1alpha1.PathMatchExact:
		return func(path string) bool { return path == spec.Value }, nil
	case v1alpha1.PathMatchRegularExpression:
		return whole(spec.Value, budget)
	case v1alpha1.PathMatchPrefix, "":
		prefix := strings.TrimSuffix(spec.Value, "/")
		return func(path string) bool {
			rest, ok := strings.CutPrefix(path, prefix)
			return ok && (rest == "" || rest[0] == '/')
		}, nil
	}
	return nil, fmt.Errorf("type %q is not known", spec.Type)
}

func valueMatchers(specs []v1alpha1.ValueMatch, budget *expression.Budget) ([]named, error) {
	var matchers []named
	for i := range specs {
		spec := &specs[i]
		var value matcher
		var err error
		switch spec.Type {
		case v1alpha1.ValueMatchExact, "":
			value = func(text string) bool { return text == spec.Value }
		case v1alpha1.ValueMatchRegularExpression:
			value, err = whole(spec.Value, budget)
		default:
			err = fmt.Errorf("type %q is not known", spec.Type)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", spec.Name, err)
		}
		matchers = append(matchers, named{spec.Name, value})
	}
	return matchers, nil
}

// whole matches a whole text against an expression.
func whole(text string, budget *expression.Budget) (matcher, error) {
	if err := budget.Spend(text); err != nil {
		return nil, err
	}
	compiled, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return nil, err
	}
	return compiled.MatchString, nil
}

// Match returns the response of the first rule that matches, or nil.
func (r *Rules) Match(request *Request) *Response {
	if r == nil {
		return nil
	}
	var query url.Values
	for i := range r.rules {
		candidate := &r.rules[i]
		if len(candidate.query) > 0 && query == nil {
			// Malformed parts match nothing.
			query, _ = url.ParseQuery(request.Query)
		}
		if candidate.matches(request, query) {
			return candidate.response
		}
	}
	return nil
}

func (r *rule) matches(request *Request, query url.Values) bool {
	if r.method != "" && r.method != request.Method {
		return false
	}
	if r.path != nil && !r.path(request.Path) {
		return false
	}
	for _, header := range r.headers {
		if !matchesAny(header.value, request.Values(header.name)) {
			return false
		}
	}
	for _, parameter := range r.query {
		if !matchesAny(parameter.value, query[parameter.name]) {
			return false
		}
	}
	return true
}

func matchesAny(matches matcher, values []string) bool {
	for _, value := range values {
		if matches(value) {
			return true
		}
	}
	return false
}
