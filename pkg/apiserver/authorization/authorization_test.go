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

// host decides for a host cluster and notes the names that it is called for.
type host struct {
	decisions map[string]authorizer.Decision
	err       error
	reviewed  []string
}

func (h *host) authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	h.reviewed = append(h.reviewed, attributes.GetName())
	decision, known := h.decisions[attributes.GetName()]
	if !known {
		decision = authorizer.DecisionNoOpinion
	}
	return decision, "", h.err
}

func TestOneObjectIsReviewedOnlyWhenNotAllAreAllowed(t *testing.T) {
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
		reviewed   []string
	}{
		{"all names", named, map[string]authorizer.Decision{"": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{""}},
		{"this name only", named, map[string]authorizer.Decision{"cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"", "cart"}},
		{"another name only", named, map[string]authorizer.Decision{"till": authorizer.DecisionAllow}, nil, authorizer.DecisionNoOpinion, []string{"", "cart"}},
		{"rejected for all, allowed for this one", named, map[string]authorizer.Decision{"": authorizer.DecisionDeny, "cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"", "cart"}},
		{"rejected", named, map[string]authorizer.Decision{"cart": authorizer.DecisionDeny}, nil, authorizer.DecisionDeny, []string{"", "cart"}},
		{"host does not respond", named, nil, errors.New("no response"), authorizer.DecisionNoOpinion, []string{"", "cart"}},
		{"no name", list, map[string]authorizer.Decision{"": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{""}},
		{"no resource", path, map[string]authorizer.Decision{"cart": authorizer.DecisionAllow}, nil, authorizer.DecisionAllow, []string{"cart"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			reviewed := &host{decisions: test.decisions, err: test.err}
			all := ForAllNames(authorizer.AuthorizerFunc(reviewed.authorize))
			decision, _, err := all.Authorize(t.Context(), test.attributes)
			if decision != test.want || !errors.Is(err, test.err) {
				t.Errorf("decided %v, %v; want %v, %v", decision, err, test.want, test.err)
			}
			if !slices.Equal(reviewed.reviewed, test.reviewed) {
				t.Errorf("called for %q, want %q", reviewed.reviewed, test.reviewed)
			}
			if aware := all.ConditionsAwareAuthorize(t.Context(), test.attributes); aware.IsAllow() != (test.want == authorizer.DecisionAllow) {
				t.Errorf("the decision with conditions is %v, want %v", aware, test.want)
			}
		})
	}
}
