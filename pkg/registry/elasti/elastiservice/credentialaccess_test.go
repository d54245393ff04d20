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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// readers are the objects that each user may get, as resource/name.
type readers map[string][]string

func (r readers) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	requested := attributes.GetResource() + "/" + attributes.GetName()
	for _, allowed := range r[attributes.GetUser().GetName()] {
		if allowed == "broken" {
			return authorizer.DecisionNoOpinion, "", errors.New("the cluster does not respond")
		}
		if allowed == requested && attributes.GetVerb() == "get" && attributes.GetNamespace() == "shop" && attributes.IsResourceRequest() {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// referring returns an ElastiService with a trigger that sends a Secret to a
// server, with the certificate authority of a ConfigMap.
func referring(server string) *elasti.ElastiService {
	object := stored()
	object.Namespace = "shop"
	object.Spec.Triggers = []elasti.ScaleTrigger{{Type: "prometheus", Metadata: &runtime.RawExtension{Raw: []byte(
		`{"query":"q","threshold":1,"serverAddress":"https://` + server + `","authorization":{"credentials":{"name":"token","key":"a"}},"tlsConfig":{"ca":{"configMap":{"name":"authority","key":"b"}}}}`)}}}
	return object
}

func TestTriggersReferOnlyToWhatTheirAuthorMayGet(t *testing.T) {
	access := &credentialAccess{authorizer: readers{
		"alice": {"secrets/token", "configmaps/authority"},
		"bob":   {"configmaps/authority"},
		"carol": {"secrets/token"},
		"dave":  {"broken"},
	}}
	slower := referring("a")
	slower.Spec.CooldownPeriod = nil
	for _, test := range []struct {
		name, user    string
		before, after *elasti.ElastiService
		// rejected is what the error names. It is empty when the object is accepted.
		rejected string
	}{
		{"may get all", "alice", nil, referring("a"), ""},
		{"may not get the Secret", "bob", nil, referring("a"), `Secret "token"`},
		{"may not get the ConfigMap", "carol", nil, referring("a"), `ConfigMap "authority"`},
		{"refers to nothing", "bob", nil, stored(), ""},
		{"changes something else", "bob", referring("a"), slower, ""},
		{"sends it to another server", "bob", referring("a"), referring("b"), `Secret "token"`},
		{"adds it", "bob", stored(), referring("a"), `Secret "token"`},
		{"takes it out", "bob", referring("a"), stored(), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: test.user})
			var err error
			if test.before == nil {
				err = access.onCreate(nil)(ctx, test.after)
			} else {
				err = access.onUpdate(nil)(ctx, test.after, test.before)
			}
			switch {
			case test.rejected == "" && err != nil:
				t.Errorf("rejected: %v", err)
			case test.rejected != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.rejected) || !strings.Contains(err.Error(), "spec.triggers[0].metadata")):
				t.Errorf("got %v, want an error that names %s and the trigger", err, test.rejected)
			}
		})
	}

	ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "dave"})
	if err := access.onCreate(nil)(ctx, referring("a")); !apierrors.IsInternalError(err) {
		t.Errorf("when the cluster does not respond: got %v, want an internal error", err)
	}
	if err := access.onCreate(nil)(t.Context(), referring("a")); !apierrors.IsInternalError(err) {
		t.Errorf("without a user: got %v, want an internal error", err)
	}
}
