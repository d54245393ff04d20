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

package authorization

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// host answers for a host cluster and notes the names that it is asked about.
type host struct {
	decisions map[string]authorizer.Decision
	err       error
	asked     []string
}

func (h *host) authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	h.asked = append(h.asked, attributes.GetName())
	decision, known := h.decisions[attributes.GetName()]
	if !known {
		decision = authorizer.DecisionNoOpinion
	}
	return decision, "", h.err
}

func TestOneObjectIsAskedAboutOnlyWhenNotAllAreAllowed(t *testing.T) {
	named := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "resolver"}, Verb: "create", Namespace: "shop",
		APIGroup: "elasti.truefoundry.com", Resource: "elastiservices", Subresource: "wake", Name: "cart", ResourceRequest: true,
	}
	list := named
	list.Verb, list.Name = "list", ""
	path := authorizer.AttributesRecord{Verb: "get", Path: "/metrics", Name: "cart"}
	for _, test := range []struct {
		name       string
		attributes authorizer.Attributes
		decisions  map[string]authorizer.Decision
		err        error
		want       authorizer.Decision
		asked      []string
	}{
		{"all names", named, map[string]authorizer.Decision{"": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{""}},
		{"this name only", named, map[string]authorizer.Decision{"cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"", "cart"}},
		{"another name only", named, map[string]authorizer.Decision{"till": authorizer.DecisionAllow}, nil, authorizer.DecisionNoOpinion, []string{"", "cart"}},
		{"refused for all, allowed for this one", named, map[string]authorizer.Decision{"": authorizer.DecisionDeny, "cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"", "cart"}},
		{"refused", named, map[string]authorizer.Decision{"cart": authorizer.DecisionDeny}, nil, authorizer.DecisionDeny, []string{"", "cart"}},
		{"host does not answer", named, nil, errors.New("no answer"), authorizer.DecisionNoOpinion, []string{"", "cart"}},
		{"no name", list, map[string]authorizer.Decision{"": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{""}},
		{"no resource", path, map[string]authorizer.Decision{"cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"cart"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			asked := &host{decisions: test.decisions, err: test.err}
			all := ForAllNames(authorizer.AuthorizerFunc(asked.authorize))
			decision, _, err := all.Authorize(t.Context(), test.attributes)
			if decision != test.want || !errors.Is(err, test.err) {
				t.Errorf("decided %v, %v; want %v, %v", decision, err, test.want, test.err)
			}
			if !slices.Equal(asked.asked, test.asked) {
				t.Errorf("asked about %q, want %q", asked.asked, test.asked)
			}
			if aware := all.ConditionsAwareAuthorize(t.Context(), test.attributes); aware.IsAllow() != (test.want == authorizer.DecisionAllow) {
				t.Errorf("the decision with conditions is %v, want %v", aware, test.want)
			}
		})
	}
}
