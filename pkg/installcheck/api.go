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

package installcheck

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

// checkAPI checks that the API server of the cluster passes requests for ElastiServices
// on, and that they are served.
func (c *Checker) checkAPI(ctx context.Context) []Problem {
	apiService, err := c.options.APIServices.ApiregistrationV1().APIServices().Get(ctx, registration.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []Problem{problem("Apply the manifests again, or set apiService.create of the chart",
			"There is no APIService %s, so the cluster does not serve ElastiServices", registration.Name)}
	case err != nil:
		return []Problem{unreadable("APIService "+registration.Name, err)}
	}
	if found := registration.Check(apiService, types.NamespacedName{Namespace: c.options.Namespace, Name: serverName}); found != nil {
		return []Problem{*found}
	}
	if _, err := c.options.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return []Problem{problem(fmt.Sprintf("Check the log: kubectl logs --namespace %s deployment/%s", c.options.Namespace, serverName),
			"Listing ElastiServices fails: %v", err)}
	}
	return nil
}

// unreadable returns the problem that something cannot be read.
func unreadable(what string, err error) Problem {
	do := "Check the connection to the API server of the cluster"
	if apierrors.IsForbidden(err) {
		do = "Allow the user of the check to read it, as the Role and the ClusterRole elasti-check of the chart do"
	}
	return problem(do, "The %s cannot be read: %v", what, err)
}
