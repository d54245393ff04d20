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

// Package authorization reduces the number of access reviews by the host cluster: one
// about all names of a namespace counts for each of them.
//
// It knows no rules of access, and makes no decision itself. Begin with ForAllNames.
package authorization

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// allNames authorizes for all objects of the namespace before the named one.
type allNames struct {
	authorizer.Authorizer
}

// ForAllNames returns an authorizer that calls next for all objects of the
// namespace first, and for the named object only when that is not allowed.
// next is expected to cache decisions: the rules of most callers name no
// objects, so that one cached decision then counts for all of them, where there
// would be a review by the host cluster for each.
//
// A caller that is allowed all names is allowed each of them. That is right for RBAC,
// which only allows. An authorizer of the host that allows all names and denies some
// of them is not called for these here. It still denies requests that come through the
// host, which is how callers reach this server.
//
// It is safe for concurrent use if next is.
func ForAllNames(next authorizer.Authorizer) authorizer.Authorizer {
	return allNames{next}
}

// Authorize implements authorizer.Authorizer.
func (a allNames) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if attributes.IsResourceRequest() && attributes.GetName() != "" {
		decision, reason, err := a.Authorizer.Authorize(ctx, nameless{attributes})
		if err == nil && decision == authorizer.DecisionAllow {
			return decision, reason, nil
		}
	}
	return a.Authorizer.Authorize(ctx, attributes)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a allNames) ConditionsAwareAuthorize(ctx context.Context, attributes authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attributes))
}

// nameless are the attributes of a request, for whatever object.
type nameless struct {
	authorizer.Attributes
}

// GetName implements authorizer.Attributes.
func (nameless) GetName() string { return "" }
