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

package proberesponse

import (
	"net/http"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func request(method, target string, fields ...string) *Request {
	header := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		header.Add(fields[i], fields[i+1])
	}
	path, query, _ := strings.Cut(target, "?")
	return &Request{Method: method, Path: path, Query: query, Values: header.Values}
}

func TestMatch(t *testing.T) {
	path := func(kind v1alpha1.PathMatchType, value string) v1alpha1.ProbeResponseRule {
		return v1alpha1.ProbeResponseRule{Path: &v1alpha1.PathMatch{Type: kind, Value: value}}
	}
	for name, test := range map[string]struct {
		rule    v1alpha1.ProbeResponseRule
		matches []*Request
		others  []*Request
	}{
		"everything": {v1alpha1.ProbeResponseRule{}, []*Request{request("GET", "/"), request("POST", "/a?b")}, nil},
		"exact": {path(v1alpha1.PathMatchExact, "/healthz"),
			[]*Request{request("GET", "/healthz"), request("GET", "/healthz?x")},
			[]*Request{request("GET", "/healthz/"), request("GET", "/"), request("GET", "/Healthz")}},
		"prefix": {path(v1alpha1.PathMatchPrefix, "/a/"),
			[]*Request{request("GET", "/a"), request("GET", "/a/"), request("GET", "/a/b")},
			[]*Request{request("GET", "/ab"), request("GET", "/"), request("GET", "/b/a")}},
		"any prefix": {path("", "/"), []*Request{request("GET", "/"), request("GET", "/a")}, []*Request{request("OPTIONS", "*")}},
		"expression": {path(v1alpha1.PathMatchRegularExpression, "/(live|ready)z"),
			[]*Request{request("GET", "/livez"), request("GET", "/readyz")},
			[]*Request{request("GET", "/livez/x"), request("GET", "/x/livez")}},
		"alternatives do not escape the anchors": {path(v1alpha1.PathMatchRegularExpression, "/a|/b"),
			[]*Request{request("GET", "/a"), request("GET", "/b")}, []*Request{request("GET", "/ab"), request("GET", "/a/b")}},
		"method": {v1alpha1.ProbeResponseRule{Method: "GET"}, []*Request{request("GET", "/")}, []*Request{request("HEAD", "/")}},
		"headers": {v1alpha1.ProbeResponseRule{Headers: []v1alpha1.ValueMatch{
			{Name: "user-agent", Type: v1alpha1.ValueMatchRegularExpression, Value: "GoogleHC/.*"}, {Name: "X-A", Value: "1"}}},
			[]*Request{request("GET", "/", "User-Agent", "GoogleHC/1.0", "X-A", "0", "X-A", "1")},
			[]*Request{request("GET", "/", "User-Agent", "GoogleHC/1.0"), request("GET", "/", "User-Agent", "x GoogleHC/1.0", "X-A", "1")}},
		"query": {v1alpha1.ProbeResponseRule{QueryParams: []v1alpha1.ValueMatch{{Name: "probe", Value: "a b"}}},
			[]*Request{request("GET", "/?probe=a+b"), request("GET", "/?x&probe=a%20b")},
			[]*Request{request("GET", "/"), request("GET", "/?Probe=a+b"), request("GET", "/?probe=")}},
	} {
		t.Run(name, func(t *testing.T) {
			test.rule.Response = v1alpha1.ProbeResponse{Status: 200, Body: "ok"}
			rules, err := Compile([]v1alpha1.ProbeResponseRule{test.rule})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range test.matches {
				if rules.Match(r) == nil {
					t.Errorf("%s %s?%s does not match", r.Method, r.Path, r.Query)
				}
			}
			for _, r := range test.others {
				if rules.Match(r) != nil {
					t.Errorf("%s %s?%s matches", r.Method, r.Path, r.Query)
				}
			}
		})
	}
}

func TestFirstRuleCountsAndBrokenOnesAreLeftOut(t *testing.T) {
	rules, err := Compile([]v1alpha1.ProbeResponseRule{
		{Path: &v1alpha1.PathMatch{Type: v1alpha1.PathMatchRegularExpression, Value: "("}, Response: v1alpha1.ProbeResponse{Status: 500}},
		{Response: v1alpha1.ProbeResponse{Status: 200, Body: `{"ok":true}`}},
		{Response: v1alpha1.ProbeResponse{Status: 404}},
	})
	if err == nil || !strings.Contains(err.Error(), "probeResponse[0]") {
		t.Errorf("the invalid rule is not reported: %v", err)
	}
	response := rules.Match(request("GET", "/"))
	if response == nil || response.Status != 200 || response.ContentType != "application/json" {
		t.Errorf("got %+v", response)
	}
	if (*Rules)(nil).Match(request("GET", "/")) != nil {
		t.Error("no rules match")
	}
}

// An earlier version accepted expressions that take megabytes each.
func TestCostlyExpressionsAreLeftOut(t *testing.T) {
	costly := &v1alpha1.PathMatch{Type: v1alpha1.PathMatchRegularExpression, Value: "/" + strings.Repeat(".{0,1000}", 100)}
	rules, err := Compile([]v1alpha1.ProbeResponseRule{
		{Path: costly, Response: v1alpha1.ProbeResponse{Status: 500}},
		{Path: &v1alpha1.PathMatch{Type: v1alpha1.PathMatchRegularExpression, Value: "/live|/ready"}, Response: v1alpha1.ProbeResponse{Status: 200}},
	})
	if err == nil || !strings.Contains(err.Error(), "probeResponse[0]") || strings.Contains(err.Error(), "probeResponse[1]") {
		t.Errorf("the expensive rule is not reported: %v", err)
	}
	if response := rules.Match(request("GET", "/ready")); response == nil || response.Status != 200 {
		t.Errorf("got %+v of the other rule", response)
	}
}
