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

package validation

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/expression"
)

// Bounds of probe responses; lengths are in bytes. Every resolver matches
// every request at zero against them.
const (
	maxProbeResponses    = 32
	maxMatchers          = 16
	maxPathBytes         = 1024
	maxMatchNameBytes    = 256
	maxMatchValueBytes   = 4096
	maxResponseBodyBytes = 64 << 10
)

// methods are the ones that requests usually have; others are allowed.
func methods() []string {
	return []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}
}

// statuses are the ones that a response may have.
func statuses() []string {
	return []string{"200", "204", "400", "401", "403", "404", "500", "502", "503", "504"}
}

func validateProbeResponse(rules []elasti.ProbeResponseRule, path *field.Path) field.ErrorList {
	if len(rules) > maxProbeResponses {
		return field.ErrorList{field.TooMany(path, len(rules), maxProbeResponses)}
	}
	var errs field.ErrorList
	var budget expression.Budget
	for i := range rules {
		rule, rulePath := &rules[i], path.Index(i)
		if rule.Path != nil {
			errs = append(errs, validatePathMatch(rule.Path, &budget, rulePath.Child("path"))...)
		}
		errs = append(errs, validateMatchers(rule.Headers, &budget, rulePath.Child("headers"), validateHeaderName)...)
		errs = append(errs, validateMatchers(rule.QueryParams, &budget, rulePath.Child("queryParams"), validateParameterName)...)
		errs = append(errs, validateMethod(rule.Method, rulePath.Child("method"))...)
		errs = append(errs, validateResponse(&rule.Response, rulePath.Child("response"))...)
	}
	return errs
}

func validatePathMatch(match *elasti.PathMatch, budget *expression.Budget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(match.Value) > maxPathBytes {
		return field.ErrorList{field.TooLong(path.Child("value"), "", maxPathBytes)}
	}
	switch match.Type {
	case elasti.PathMatchRegularExpression:
		errs = append(errs, validateExpression(match.Value, budget, path.Child("value"))...)
	case elasti.PathMatchExact, elasti.PathMatchPrefix:
		if !strings.HasPrefix(match.Value, "/") {
			errs = append(errs, field.Invalid(path.Child("value"), match.Value, "must start with /, as the path of every request does"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), match.Type, []elasti.PathMatchType{elasti.PathMatchExact, elasti.PathMatchPrefix, elasti.PathMatchRegularExpression}))
	}
	return errs
}

func validateMatchers(matchers []elasti.ValueMatch, budget *expression.Budget, path *field.Path, validateName func(string, *field.Path) field.ErrorList) field.ErrorList {
	if len(matchers) > maxMatchers {
		return field.ErrorList{field.TooMany(path, len(matchers), maxMatchers)}
	}
	var errs field.ErrorList
	for i, matcher := range matchers {
		matcherPath := path.Index(i)
		errs = append(errs, validateName(matcher.Name, matcherPath.Child("name"))...)
		value := matcherPath.Child("value")
		if len(matcher.Value) > maxMatchValueBytes {
			errs = append(errs, field.TooLong(value, "", maxMatchValueBytes))
			continue
		}
		switch matcher.Type {
		case elasti.ValueMatchExact:
		case elasti.ValueMatchRegularExpression:
			errs = append(errs, validateExpression(matcher.Value, budget, value)...)
		default:
			errs = append(errs, field.NotSupported(matcherPath.Child("type"), matcher.Type, []elasti.ValueMatchType{elasti.ValueMatchExact, elasti.ValueMatchRegularExpression}))
		}
	}
	return errs
}

func validateHeaderName(name string, path *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "give the name of a header")}
	case len(name) > maxMatchNameBytes:
		return field.ErrorList{field.TooLong(path, "", maxMatchNameBytes)}
	case !httpguts.ValidHeaderFieldName(name):
		return field.ErrorList{field.Invalid(path, name, "is not the name of an HTTP header: use letters, digits and hyphens")}
	default:
		return nil
	}
}

func validateParameterName(name string, path *field.Path) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, "give the name of a query parameter")}
	case len(name) > maxMatchNameBytes:
		return field.ErrorList{field.TooLong(path, "", maxMatchNameBytes)}
	default:
		return nil
	}
}

// validateExpression checks a regular expression. RE2 matches in linear time,
// so that the bounds of what all of them cost and of a request's headers bound
// what one request can cost.
func validateExpression(text string, budget *expression.Budget, path *field.Path) field.ErrorList {
	if _, err := expression.Cost(text); err != nil {
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("is not a regular expression in RE2 syntax: %v", err))}
	}
	if err := budget.Spend(text); err != nil {
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	return nil
}

func validateMethod(method string, path *field.Path) field.ErrorList {
	switch {
	case method == "", slices.Contains(methods(), method):
		return nil
	case slices.Contains(methods(), strings.ToUpper(method)):
		return field.ErrorList{field.Invalid(path, method, fmt.Sprintf("matches no request, since methods are case-sensitive: use %s", strings.ToUpper(method)))}
	// Methods and names of headers have the same syntax.
	case len(method) > maxMatchNameBytes, !httpguts.ValidHeaderFieldName(method):
		return field.ErrorList{field.Invalid(path, method, "is not an HTTP method: use one such as GET")}
	default:
		return nil
	}
}

func validateResponse(response *elasti.ProbeResponse, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if status := strconv.Itoa(int(response.Status)); !slices.Contains(statuses(), status) {
		errs = append(errs, field.NotSupported(path.Child("status"), status, statuses()))
	}
	if len(response.Body) > maxResponseBodyBytes {
		errs = append(errs, field.TooLong(path.Child("body"), "", maxResponseBodyBytes))
	}
	return errs
}
