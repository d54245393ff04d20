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
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// apiServiceName is the name of the APIService of ElastiServices.
var apiServiceName = v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.SchemeGroupVersion.Group

// checkAPI checks that the API server of the cluster passes requests for ElastiServices
// on, and that they are served.
func (c *Checker) checkAPI(ctx context.Context) []Problem {
	apiService, err := c.options.APIServices.ApiregistrationV1().APIServices().Get(ctx, apiServiceName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return []Problem{problem("Apply the manifests again, or set apiService.create of the chart",
			"There is no APIService %s, so the cluster does not serve ElastiServices", apiServiceName)}
	case err != nil:
		return []Problem{unreadable("APIService "+apiServiceName, err)}
	}
	if problems := c.checkRegistration(apiService); len(problems) > 0 {
		return problems
	}
	if _, err := c.options.Elasti.ElastiV1alpha1().ElastiServices(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return []Problem{problem(fmt.Sprintf("See what elasti-apiserver says: kubectl logs --namespace %s deployment/%s", c.options.Namespace, serverName),
			"A list of ElastiServices fails: %v", err)}
	}
	return nil
}

// checkRegistration checks where an APIService leads, and whether the API server of the
// cluster gets there.
func (c *Checker) checkRegistration(apiService *apiregistrationv1.APIService) []Problem {
	service := apiService.Spec.Service
	switch {
	case service == nil:
		// The API server of the cluster makes it so for a CustomResourceDefinition.
		return []Problem{problem("Save its objects (kubectl get elastiservices --all-namespaces --output=yaml), uninstall KubeElasti with its CustomResourceDefinition elastiservices.elasti.truefoundry.com, and apply the manifests again",
			"The APIService %s belongs to a CustomResourceDefinition, as KubeElasti has one, and leads to no Service", apiServiceName)}
	case service.Namespace != c.options.Namespace || service.Name != serverName:
		return []Problem{problem("Uninstall the other one: a cluster can have one",
			"The APIService %s leads to the Service %s/%s of another installation", apiServiceName, service.Namespace, service.Name)}
	}
	for _, condition := range apiService.Status.Conditions {
		if condition.Type != apiregistrationv1.Available {
			continue
		}
		if condition.Status == apiregistrationv1.ConditionTrue {
			return nil
		}
		return []Problem{problem(c.adviceFor(condition), "The API server of the cluster does not reach elasti-apiserver (%s): %s",
			condition.Reason, strings.TrimSuffix(condition.Message, "."))}
	}
	return []Problem{problem("Check that the aggregation layer of the cluster is enabled: its API server has --requestheader-client-ca-file and --proxy-client-cert-file",
		"The API server of the cluster has not yet tried to reach elasti-apiserver")}
}

// adviceFor returns what to do about an APIService that is not available.
func (c *Checker) adviceFor(condition apiregistrationv1.APIServiceCondition) string {
	message := strings.ToLower(condition.Message)
	switch {
	case condition.Reason == "ServiceNotFound" || condition.Reason == "ServicePortError":
		return "Apply the manifests again: they have the Service"
	case condition.Reason == "EndpointsNotFound" || condition.Reason == "MissingEndpoints" || condition.Reason == "EndpointsNotReady":
		return fmt.Sprintf("No pod of it is ready, see why: kubectl describe pods --namespace %s --selector %s=%s", c.options.Namespace, nameLabel, serverName)
	case strings.Contains(message, "x509") || strings.Contains(message, "certificate"):
		return "The caBundle of the APIService is not the authority of the certificate: with a certificate of yours, give tls.existingSecret.caBundle; otherwise see the log of elasti-apiserver, which writes it"
	case strings.Contains(message, "403") || strings.Contains(message, "401"):
		return "elasti-apiserver does not accept the API server of the cluster: see its log, it must be allowed to read the ConfigMap kube-system/extension-apiserver-authentication"
	default:
		return "Allow connections from the control plane to the port of elasti-apiserver, 8443 by default, in firewalls and NetworkPolicies; where the control plane does not reach pods at all, set elastiController.hostNetwork.enabled"
	}
}

// unreadable returns the problem that something cannot be read.
func unreadable(what string, err error) Problem {
	do := "Check the connection to the API server of the cluster"
	if apierrors.IsForbidden(err) {
		do = "Allow the user of the check to read it, as the Role and the ClusterRole elasti-check of the chart do"
	}
	return problem(do, "The %s cannot be read: %v", what, err)
}
