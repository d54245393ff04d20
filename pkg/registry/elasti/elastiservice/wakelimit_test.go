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

package elastiservice

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"
)

// scalers are the users that may update the scale of shop/cart.
type scalers []string

func (s scalers) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	requested := strings.Join([]string{attributes.GetVerb(), attributes.GetAPIGroup(), attributes.GetResource(), attributes.GetSubresource(), attributes.GetNamespace(), attributes.GetName()}, " ")
	for _, name := range s {
		if name == attributes.GetUser().GetName() && requested == "update elasti.truefoundry.com elastiservices scale shop cart" && attributes.IsResourceRequest() {
			return authorizer.DecisionAllow, "", nil
		}
	}
	if attributes.GetUser().GetName() == "dave" {
		return authorizer.DecisionNoOpinion, "", errors.New("the cluster does not respond")
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestAWakeBeyondTheMinimumNeedsThePermissionToScale(t *testing.T) {
	limit := &wakeLimit{authorizer: scalers{"alice"}}
	elastiService := sleeping()
	elastiService.Spec.MinTargetReplicas = ptr.To[int32](2)
	for _, test := range []struct {
		user     string
		replicas int32
		want     func(error) bool
	}{
		{"bob", 1, nil},
		{"bob", 2, nil},
		{"bob", 3, apierrors.IsForbidden},
		{"bob", 100_000, apierrors.IsForbidden},
		{"alice", 100_000, nil},
		{"dave", 2, nil},
		{"dave", 3, apierrors.IsInternalError},
	} {
		err := limit.check(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: test.user}), elastiService, test.replicas)
		if test.want == nil && err != nil || test.want != nil && !test.want(err) {
			t.Errorf("%s to %d replicas: got %v", test.user, test.replicas, err)
		}
		if apierrors.IsForbidden(err) && (!strings.Contains(err.Error(), "may update elastiservices/scale") || !strings.Contains(err.Error(), "spec.replicas") || !strings.Contains(err.Error(), `"bob"`)) {
			t.Errorf("%v does not say what is missing", err)
		}
	}
	if err := limit.check(t.Context(), elastiService, 3); !apierrors.IsInternalError(err) {
		t.Errorf("without a user: got %v, want an internal error", err)
	}
	if err := (*wakeLimit)(nil).check(t.Context(), elastiService, 3); err != nil {
		t.Errorf("without an authorizer: got %v", err)
	}
}
