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
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// wakeLimit checks that a wake goes beyond spec.minTargetReplicas only for callers
// that may scale the ElastiService: the permission to wake is granted to what
// needs the application, not to what decides on its size. Nil allows every caller
// any number of replicas.
type wakeLimit struct {
	authorizer authorizer.UnconditionalAuthorizer
}

// check fails when the caller may not wake the target to that many replicas.
func (l *wakeLimit) check(ctx context.Context, elastiService *elasti.ElastiService, replicas int32) error {
	minimum := *elastiService.Spec.MinTargetReplicas
	if l == nil || replicas <= minimum {
		return nil
	}
	user, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("it is not known which user wakes the ElastiService"))
	}
	decision, _, err := l.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "update", Namespace: elastiService.Namespace, APIGroup: elasti.GroupName, APIVersion: "*",
		Resource: "elastiservices", Subresource: "scale", Name: elastiService.Name, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("checking whether %q may update elastiservices/scale %q: %w", user.GetName(), elastiService.Name, err))
	default:
		return apierrors.NewForbidden(elasti.Resource("elastiservices/wake"), elastiService.Name,
			fmt.Errorf("spec.replicas is %d, but a wake scales to the %d of spec.minTargetReplicas and no further unless the caller may update elastiservices/scale, which %q may not in the namespace %q: leave spec.replicas out, or get that permission granted",
				replicas, minimum, user.GetName(), elastiService.Namespace))
	}
}
