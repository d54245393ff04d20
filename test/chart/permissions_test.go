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

package chart

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// permissions are all that the roles grant. A line has the role, what it is about (group
// and resource, with the name of the only object behind a colon), and the verbs. A
// permission that is granted only with a value of the chart says so. SECURITY.md and docs/install.md
// explain them: what is added here is added there.
const permissions = `
ClusterRole/elasti-apiserver */*/scale get update patch
ClusterRole/elasti-apiserver apps/deployments get list watch
ClusterRole/elasti-apiserver apps/replicasets get list watch
ClusterRole/elasti-apiserver apps/statefulsets get list watch
ClusterRole/elasti-apiserver argoproj.io/rollouts get list watch
ClusterRole/elasti-apiserver keda.sh/scaledobjects get list watch patch
ClusterRole/elasti-apiserver autoscaling/horizontalpodautoscalers get list watch
ClusterRole/elasti-apiserver metrics.k8s.io/pods list
ClusterRole/elasti-apiserver external.metrics.k8s.io/* list
ClusterRole/elasti-apiserver /services get list watch create update delete
ClusterRole/elasti-apiserver discovery.k8s.io/endpointslices get list watch create update delete
ClusterRole/elasti-apiserver discovery.k8s.io/endpointslices/restricted create : openshift
ClusterRole/elasti-apiserver /pods list
ClusterRole/elasti-apiserver events.k8s.io/events list create patch
ClusterRole/elasti-apiserver /serviceaccounts:elasti-apiserver get patch
ClusterRole/elasti-apiserver rbac.authorization.k8s.io/clusterroles:elasti-apiserver get patch
ClusterRole/elasti-apiserver rbac.authorization.k8s.io/clusterrolebindings:elasti-apiserver get patch

ClusterRole/elasti-apiserver:server /namespaces get list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/mutatingadmissionpolicies list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/mutatingadmissionpolicybindings list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/mutatingwebhookconfigurations list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/validatingadmissionpolicies list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/validatingadmissionpolicybindings list watch
ClusterRole/elasti-apiserver:server admissionregistration.k8s.io/validatingwebhookconfigurations list watch
ClusterRole/elasti-apiserver:server /resourcequotas list watch
ClusterRole/elasti-apiserver:server /resourcequotas/status update
ClusterRole/elasti-apiserver:server flowcontrol.apiserver.k8s.io/flowschemas list watch
ClusterRole/elasti-apiserver:server flowcontrol.apiserver.k8s.io/prioritylevelconfigurations list watch
ClusterRole/elasti-apiserver:server apiregistration.k8s.io/apiservices:v1alpha1.elasti.truefoundry.com get patch

ClusterRole/elasti-apiserver:storage storage.elasti.truefoundry.com/storedelastiservices get list watch create update patch delete
ClusterRole/elasti-apiserver:storage storage.elasti.truefoundry.com/storedproxyportclaims get list watch create update patch delete

Role/elasti-system/elasti-apiserver /secrets create
Role/elasti-system/elasti-apiserver /secrets:elasti-apiserver-serving-cert get update
Role/elasti-system/elasti-apiserver /secrets:elasti-apiserver-signing-key get
Role/elasti-system/elasti-apiserver /configmaps create
Role/elasti-system/elasti-apiserver /configmaps:elasti-apiserver-store get update
Role/elasti-system/elasti-apiserver coordination.k8s.io/leases get create update
Role/elasti-system/elasti-apiserver-resolver-endpoints discovery.k8s.io/endpointslices list watch : namespaces
Role/default/elasti-apiserver-kubernetes-api discovery.k8s.io/endpointslices:kubernetes get : namespaces

ClusterRole/elasti-resolver elasti.truefoundry.com/elastiservices list watch
ClusterRole/elasti-resolver elasti.truefoundry.com/elastiservices/wake create
ClusterRole/elasti-resolver elasti.truefoundry.com/elastiservices/activity create
ClusterRole/elasti-resolver discovery.k8s.io/endpointslices list watch
ClusterRole/elasti-resolver authentication.k8s.io/tokenreviews create
ClusterRole/elasti-resolver authorization.k8s.io/subjectaccessreviews create

ClusterRole/elasti-view elasti.truefoundry.com/elastiservices get list watch
ClusterRole/elasti-view elasti.truefoundry.com/elastiservices/scale get
ClusterRole/elasti-view elasti.truefoundry.com/elastiservices/status get
ClusterRole/elasti-edit elasti.truefoundry.com/elastiservices create update patch delete deletecollection
ClusterRole/elasti-edit elasti.truefoundry.com/elastiservices/scale update patch
ClusterRole/elasti-edit elasti.truefoundry.com/elastiservices/wake create
ClusterRole/elasti-metrics-reader /metrics get

Role/elasti-system/elasti-check apps/deployments:elasti-apiserver get : chart
Role/elasti-system/elasti-check apps/deployments:elasti-resolver get : chart
Role/elasti-system/elasti-check /pods list : chart
Role/elasti-system/elasti-check /persistentvolumeclaims list : chart
ClusterRole/elasti-check apiregistration.k8s.io/apiservices:v1alpha1.elasti.truefoundry.com get : chart
ClusterRole/elasti-check elasti.truefoundry.com/elastiservices list : chart
`

// bindings are all that give a role to a subject. A RoleBinding says its namespace.
const bindings = `
ClusterRoleBinding/elasti-apiserver ClusterRole/elasti-apiserver elasti-apiserver
ClusterRoleBinding/elasti-apiserver:server ClusterRole/elasti-apiserver:server elasti-apiserver
ClusterRoleBinding/elasti-apiserver:storage ClusterRole/elasti-apiserver:storage elasti-apiserver
ClusterRoleBinding/elasti-apiserver:system:auth-delegator ClusterRole/system:auth-delegator elasti-apiserver
RoleBinding/kube-system/elasti-apiserver:extension-apiserver-authentication-reader Role/extension-apiserver-authentication-reader elasti-apiserver
RoleBinding/elasti-system/elasti-apiserver Role/elasti-apiserver elasti-apiserver
RoleBinding/elasti-system/elasti-apiserver-resolver-endpoints Role/elasti-apiserver-resolver-endpoints elasti-apiserver
RoleBinding/default/elasti-apiserver-kubernetes-api Role/elasti-apiserver-kubernetes-api elasti-apiserver
RoleBinding/shop/elasti-apiserver-targets ClusterRole/elasti-apiserver elasti-apiserver
RoleBinding/blog/elasti-apiserver-targets ClusterRole/elasti-apiserver elasti-apiserver
ClusterRoleBinding/elasti-resolver ClusterRole/elasti-resolver elasti-resolver
ClusterRoleBinding/elasti-check ClusterRole/elasti-check elasti-check
RoleBinding/elasti-system/elasti-check Role/elasti-check elasti-check
`

// rendering is the objects of a source, with the conditions of the table that it meets.
type rendering struct {
	name    string
	objects []object
	meets   []string
}

// renderings are all in which roles differ.
func renderings(t *testing.T) []rendering {
	t.Helper()
	var all []rendering
	for _, source := range sources {
		var meets []string
		for condition, value := range map[string]string{"namespaces": "allowedNamespaces", "openshift": "openshift"} {
			if strings.Contains(source.values, value) {
				meets = append(meets, condition)
			}
		}
		all = append(all,
			rendering{"the kustomization of " + source.name, kustomize(t, source.kustomization), meets},
			rendering{"the chart with " + source.name, renderChart(t, source.values), append([]string{"chart"}, meets...)},
		)
	}
	return all
}

// No role grants more than the table, and nothing in the table is granted by no role.
func TestRolesGrantWhatIsListed(t *testing.T) {
	listed := map[string]string{}
	for line := range strings.Lines(permissions) {
		line, condition, _ := strings.Cut(line, " : ")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, verb := range words[2:] {
			listed[words[0]+" "+words[1]+" "+verb] = strings.TrimSpace(condition)
		}
	}
	granted := map[string]bool{}
	for _, rendering := range renderings(t) {
		for _, grant := range grantsOf(t, rendering.objects) {
			granted[grant] = true
			condition, found := listed[grant]
			switch {
			case !found:
				t.Errorf("%s grants %q, which is not in the table", rendering.name, grant)
			case condition != "" && !slices.Contains(rendering.meets, condition):
				t.Errorf("%s grants %q, which is for %s alone", rendering.name, grant, condition)
			}
		}
	}
	for _, grant := range slices.Sorted(maps.Keys(listed)) {
		if !granted[grant] {
			t.Errorf("%q is in the table, and no role grants it", grant)
		}
	}
}

// grantsOf returns a line for each verb of each resource that a role grants.
func grantsOf(t *testing.T, objects []object) []string {
	t.Helper()
	var grants []string
	for _, each := range objects {
		if each["kind"] != "ClusterRole" && each["kind"] != "Role" {
			continue
		}
		if each["aggregationRule"] != nil {
			t.Errorf("%s has an aggregationRule: what it grants cannot be listed", each.id())
		}
		for _, rule := range each["rules"].([]any) {
			rule := rule.(map[string]any)
			for _, what := range subjectsOf(rule) {
				for _, verb := range texts(rule["verbs"]) {
					grants = append(grants, each.id()+" "+what+" "+verb)
				}
			}
		}
	}
	return grants
}

// subjectsOf returns what a rule is about.
func subjectsOf(rule map[string]any) []string {
	subjects := texts(rule["nonResourceURLs"])
	for _, group := range texts(rule["apiGroups"]) {
		for _, resource := range texts(rule["resources"]) {
			what := group + "/" + resource
			names := texts(rule["resourceNames"])
			for _, name := range names {
				subjects = append(subjects, what+":"+name)
			}
			if len(names) == 0 {
				subjects = append(subjects, what)
			}
		}
	}
	return subjects
}

func texts(list any) []string {
	var texts []string
	items, _ := list.([]any)
	for _, item := range items {
		texts = append(texts, fmt.Sprint(item))
	}
	return texts
}

// Roles go to the ServiceAccounts of the product alone.
func TestRolesAreBoundAsListed(t *testing.T) {
	listed := map[string]bool{}
	for line := range strings.Lines(bindings) {
		if line = strings.TrimSpace(line); line != "" {
			listed[line] = false
		}
	}
	for _, rendering := range renderings(t) {
		for _, each := range rendering.objects {
			if each["kind"] != "ClusterRoleBinding" && each["kind"] != "RoleBinding" {
				continue
			}
			for _, subject := range each["subjects"].([]any) {
				subject := subject.(map[string]any)
				binding := fmt.Sprintf("%s %s/%s %s", each.id(), at(each, "roleRef", "kind"), at(each, "roleRef", "name"), subject["name"])
				if _, found := listed[binding]; !found || subject["kind"] != "ServiceAccount" || subject["namespace"] != releaseNamespace {
					t.Errorf("%s binds %s of %s, which is not in the table", rendering.name, binding, show(subject))
				}
				listed[binding] = true
			}
		}
	}
	for _, binding := range slices.Sorted(maps.Keys(listed)) {
		if !listed[binding] {
			t.Errorf("%q is in the table, and not bound", binding)
		}
	}
}
