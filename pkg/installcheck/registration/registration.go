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

// Package registration says what is wrong with the APIService of ElastiServices, and what
// to do about it.
//
// It knows no client: it gets the APIService as it was read. Begin with Check.
package registration

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Name is that of the APIService of ElastiServices.
var Name = v1alpha1.SchemeGroupVersion.Version + "." + v1alpha1.SchemeGroupVersion.Group

// NameLabel is the label of pods with the name of their component.
const NameLabel = "app.kubernetes.io/name"

// Problem is what keeps an installation from serving.
type Problem struct {
	// What is wrong, and what to Do about it: a sentence each.
	What, Do string
}

// Error returns both sentences.
func (p Problem) Error() string { return p.What + ". " + p.Do + "." }

// NewProblem returns a Problem. args are formatted into what; do is used as it is.
func NewProblem(do, what string, args ...any) *Problem {
	return &Problem{What: fmt.Sprintf(what, args...), Do: do}
}

// Check returns what is wrong with the APIService of an installation, whose Service is
// given, or nil.
func Check(apiService *apiregistrationv1.APIService, service types.NamespacedName) *Problem {
	if found := CheckOwner(apiService, service); found != nil {
		return found
	}
	available := Available(apiService)
	switch {
	case available == nil:
		return NewProblem("Check that the aggregation layer of the cluster is enabled: its API server has --requestheader-client-ca-file and --proxy-client-cert-file",
			"The API server of the cluster has not yet tried to reach elasti-apiserver")
	case available.Status == apiregistrationv1.ConditionTrue:
		return nil
	}
	return NewProblem(adviceFor(available, service), "The API server of the cluster does not reach elasti-apiserver (%s): %s",
		available.Reason, strings.TrimSuffix(available.Message, "."))
}

// CheckOwner returns a problem when an APIService leads to another server, or to none.
func CheckOwner(apiService *apiregistrationv1.APIService, service types.NamespacedName) *Problem {
	found := apiService.Spec.Service
	switch {
	case found == nil:
		// The API server of the cluster makes it so for a CustomResourceDefinition.
		return NewProblem("Save its objects (kubectl get elastiservices --all-namespaces --output=yaml), uninstall KubeElasti with its CustomResourceDefinition elastiservices.elasti.truefoundry.com, and apply the manifests again",
			"The APIService %s belongs to a CustomResourceDefinition, as KubeElasti has one, and leads to no Service", Name)
	case found.Namespace != service.Namespace || found.Name != service.Name:
		return NewProblem("Uninstall the other one: a cluster can have one",
			"The APIService %s leads to the Service %s/%s of another installation", Name, found.Namespace, found.Name)
	}
	return nil
}

// Available returns the condition that says whether the server is reached, or nil when the
// API server of the cluster has not tried it.
func Available(apiService *apiregistrationv1.APIService) *apiregistrationv1.APIServiceCondition {
	for i := range apiService.Status.Conditions {
		if condition := &apiService.Status.Conditions[i]; condition.Type == apiregistrationv1.Available {
			return condition
		}
	}
	return nil
}

// adviceFor returns what to do when the server is not reached.
func adviceFor(available *apiregistrationv1.APIServiceCondition, service types.NamespacedName) string {
	message := strings.ToLower(available.Message)
	switch {
	case available.Reason == "ServiceNotFound" || available.Reason == "ServicePortError":
		return "Apply the manifests again: they have the Service"
	case available.Reason == "EndpointsNotFound" || available.Reason == "MissingEndpoints" || available.Reason == "EndpointsNotReady":
		return fmt.Sprintf("No pod of it is ready, see why: kubectl describe pods --namespace %s --selector %s=%s", service.Namespace, NameLabel, service.Name)
	case strings.Contains(message, "x509") || strings.Contains(message, "certificate"):
		return "The caBundle of the APIService is not the authority of the certificate: with a certificate of yours, give tls.existingSecret.caBundle; otherwise see the log of elasti-apiserver, which writes it"
	case strings.Contains(message, "403") || strings.Contains(message, "401"):
		return "elasti-apiserver does not accept the API server of the cluster: see its log, it must be allowed to read the ConfigMap kube-system/extension-apiserver-authentication"
	default:
		return "Allow connections from the control plane to the port of elasti-apiserver, 8443 by default, in firewalls and NetworkPolicies; where the control plane does not reach pods at all, set elastiController.hostNetwork.enabled"
	}
}
