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
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repositoryDirectory is from this directory.
const repositoryDirectory = "../.."

// uses are the places in the code that need the permissions of a ServiceAccount. A line
// has the account, what is needed, separated by commas, and the verbs, and behind a colon
// the file and what it has in a line that is no comment. Informers list and watch.
const uses = `
elasti-apiserver */*/scale get : pkg/scaling/client.go c.rest.Get().AbsPath(
elasti-apiserver */*/scale update : pkg/scaling/client.go c.rest.Put()
elasti-apiserver */*/scale patch : pkg/scaling/wake.go c.rest.Patch(types.JSONPatchType)
elasti-apiserver apps/deployments,apps/replicasets,apps/statefulsets,argoproj.io/rollouts get : pkg/preflight/preflight.go c.options.Dynamic.Resource(resource).Namespace(target.Namespace).Get(
elasti-apiserver apps/deployments,apps/replicasets,apps/statefulsets,argoproj.io/rollouts list : pkg/controller/target/watches.go client.List(ctx
elasti-apiserver apps/deployments,apps/replicasets,apps/statefulsets,argoproj.io/rollouts watch : pkg/controller/target/watches.go client.Watch(ctx
elasti-apiserver keda.sh/scaledobjects get : pkg/scaling/keda.go c.rest.Get().AbsPath("/apis/keda.sh/v1alpha1")
elasti-apiserver keda.sh/scaledobjects patch : pkg/scaling/keda.go c.rest.Patch(types.MergePatchType)
elasti-apiserver autoscaling/horizontalpodautoscalers get : pkg/scaling/hpa.go c.rest.Get().AbsPath("/apis/autoscaling/v2")
elasti-apiserver keda.sh/scaledobjects,autoscaling/horizontalpodautoscalers list : pkg/controller/target/autoscalers.go client.List(ctx
elasti-apiserver keda.sh/scaledobjects,autoscaling/horizontalpodautoscalers watch : pkg/controller/target/autoscalers.go client.Watch(ctx
elasti-apiserver metrics.k8s.io/pods list : pkg/controller/sleep/evaluators/cpu.go AbsPath("/apis", resourcemetrics.GroupName
elasti-apiserver external.metrics.k8s.io/* list : pkg/controller/sleep/evaluators/externalmetric.go AbsPath("/apis", api, externalmetrics.SchemeGroupVersion.Version
elasti-apiserver /services,discovery.k8s.io/endpointslices list : pkg/controller/elastiservice/sources.go client.List(ctx
elasti-apiserver /services,discovery.k8s.io/endpointslices watch : pkg/controller/elastiservice/sources.go client.Watch(ctx
elasti-apiserver /services get : pkg/controller/elastiservice/privateservice.go services.Get(ctx
elasti-apiserver /services create : pkg/controller/elastiservice/privateservice.go services.Create(ctx
elasti-apiserver /services update : pkg/controller/elastiservice/privateservice.go services.Update(ctx
elasti-apiserver /services delete : pkg/controller/elastiservice/privateservice.go services.Delete(ctx
elasti-apiserver discovery.k8s.io/endpointslices get : pkg/controller/elastiservice/slices.go endpointSlices.Get(ctx
elasti-apiserver discovery.k8s.io/endpointslices,discovery.k8s.io/endpointslices/restricted create : pkg/controller/elastiservice/slices.go endpointSlices.Create(ctx
elasti-apiserver discovery.k8s.io/endpointslices update : pkg/controller/elastiservice/slices.go endpointSlices.Update(ctx
elasti-apiserver discovery.k8s.io/endpointslices delete : pkg/controller/elastiservice/slices.go c.host.DiscoveryV1().EndpointSlices(slice.Namespace).Delete(ctx
elasti-apiserver discovery.k8s.io/endpointslices:kubernetes get : pkg/controller/sleep/egress/apiservers.go a.slices.Get(ctx
elasti-apiserver /pods list : pkg/controller/startup/inspector.go i.options.Host.CoreV1().Pods(inspected.start.Target.Namespace).List(ctx
elasti-apiserver events.k8s.io/events list : pkg/controller/startup/inspector.go i.options.Host.EventsV1().Events(namespace).List(ctx
elasti-apiserver events.k8s.io/events create : pkg/apiserver/app/events.go s.EventSink.Create(ctx
elasti-apiserver events.k8s.io/events patch : pkg/apiserver/app/events.go s.EventSink.Patch(ctx
elasti-apiserver /serviceaccounts:elasti-apiserver get patch : pkg/controller/uninstall/parts.go host.CoreV1().ServiceAccounts(namespace).Get, host.CoreV1().ServiceAccounts(namespace).Patch
elasti-apiserver rbac.authorization.k8s.io/clusterroles:elasti-apiserver get patch : pkg/controller/uninstall/parts.go host.RbacV1().ClusterRoles().Get, host.RbacV1().ClusterRoles().Patch
elasti-apiserver rbac.authorization.k8s.io/clusterrolebindings:elasti-apiserver get patch : pkg/controller/uninstall/parts.go host.RbacV1().ClusterRoleBindings().Get, host.RbacV1().ClusterRoleBindings().Patch

elasti-apiserver /namespaces get : pkg/controller/uninstall/parts.go host.CoreV1().Namespaces().Get
elasti-apiserver /namespaces list watch : pkg/apiserver/app/storage.go o.Recommended.ApplyTo(config)
elasti-apiserver admissionregistration.k8s.io/mutatingadmissionpolicies,admissionregistration.k8s.io/mutatingadmissionpolicybindings list watch : pkg/apiserver/app/admission.go mutatingpolicy.PluginName
elasti-apiserver admissionregistration.k8s.io/validatingadmissionpolicies,admissionregistration.k8s.io/validatingadmissionpolicybindings list watch : pkg/apiserver/app/admission.go validatingpolicy.PluginName
elasti-apiserver admissionregistration.k8s.io/mutatingwebhookconfigurations,admissionregistration.k8s.io/validatingwebhookconfigurations list watch : pkg/apiserver/app/storage.go o.Recommended.ApplyTo(config)
elasti-apiserver /resourcequotas list watch : pkg/apiserver/app/admission.go wants.SetQuotaConfiguration(
elasti-apiserver /resourcequotas/status update : pkg/apiserver/app/admission.go wants.SetQuotaConfiguration(
elasti-apiserver flowcontrol.apiserver.k8s.io/flowschemas,flowcontrol.apiserver.k8s.io/prioritylevelconfigurations list watch : pkg/apiserver/app/storage.go o.Recommended.ApplyTo(config)
elasti-apiserver apiregistration.k8s.io/apiservices:v1alpha1.elasti.truefoundry.com get : pkg/apiserver/servingcert/apiservice.go p.APIServices.Get(ctx
elasti-apiserver apiregistration.k8s.io/apiservices:v1alpha1.elasti.truefoundry.com patch : pkg/apiserver/servingcert/apiservice.go p.APIServices.Patch(ctx

elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims get list : pkg/storage/cluster/hostclient.go h.client.Get().Resource(h.resource)
elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims watch : pkg/storage/cluster/hostclient.go .Watch(ctx)
elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims create : pkg/storage/cluster/hostclient.go h.client.Post().Resource(h.resource)
elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims update : pkg/storage/cluster/hostclient.go h.client.Put().Resource(h.resource)
elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims patch : pkg/storage/cluster/hostclient.go h.client.Patch(types.MergePatchType).Resource(h.resource)
elasti-apiserver storage.elasti.truefoundry.com/storedelastiservices,storage.elasti.truefoundry.com/storedproxyportclaims delete : pkg/storage/cluster/hostclient.go h.client.Delete().Resource(h.resource)

elasti-apiserver /secrets create : pkg/apiserver/servingcert/provider.go p.options.Secrets.Create(ctx
elasti-apiserver /secrets:elasti-apiserver-serving-cert get : pkg/apiserver/servingcert/provider.go p.options.Secrets.Get(ctx
elasti-apiserver /secrets:elasti-apiserver-serving-cert update : pkg/apiserver/servingcert/provider.go p.options.Secrets.Update(ctx
elasti-apiserver /secrets:elasti-apiserver-signing-key get : pkg/controller/signature/source.go s.Secrets.Get(ctx
elasti-apiserver /configmaps create : pkg/storage/guard/record.go r.ConfigMaps.Create(ctx
elasti-apiserver /configmaps:elasti-apiserver-store get : pkg/storage/guard/record.go r.ConfigMaps.Get(ctx
elasti-apiserver /configmaps:elasti-apiserver-store update : pkg/storage/guard/record.go r.ConfigMaps.Update(ctx
elasti-apiserver coordination.k8s.io/leases get create update : pkg/controller/leader/leader.go resourcelock.LeaseLock{

elasti-resolver elasti.truefoundry.com/elastiservices list watch : pkg/resolver/resolver.go elasti.Elasti().V1alpha1().ElastiServices()
elasti-resolver elasti.truefoundry.com/elastiservices/wake create : pkg/resolver/service.go r.options.Elasti.ElastiV1alpha1().ElastiServices(s.Namespace)
elasti-resolver elasti.truefoundry.com/elastiservices/activity create : pkg/resolver/service.go .ReportActivity(ctx
elasti-resolver discovery.k8s.io/endpointslices list : pkg/resolver/verifypath.go .EndpointSlices(svc.Namespace).List(ctx
elasti-resolver discovery.k8s.io/endpointslices watch : pkg/resolver/leave.go factory.Discovery().V1().EndpointSlices().Informer()
elasti-resolver authentication.k8s.io/tokenreviews create : pkg/resolver/app/app.go client.AuthenticationV1().TokenReviews()
elasti-resolver authorization.k8s.io/subjectaccessreviews create : pkg/resolver/app/app.go client.AuthorizationV1().SubjectAccessReviews()

elasti-check apps/deployments:elasti-apiserver,apps/deployments:elasti-resolver get : pkg/installcheck/pods.go c.options.Kubernetes.AppsV1().Deployments(c.options.Namespace).Get(ctx
elasti-check /pods list : pkg/installcheck/pods.go c.options.Kubernetes.CoreV1().Pods(c.options.Namespace).List(ctx
elasti-check /persistentvolumeclaims list : pkg/installcheck/pods.go c.options.Kubernetes.CoreV1().PersistentVolumeClaims(c.options.Namespace).List(ctx
elasti-check apiregistration.k8s.io/apiservices:v1alpha1.elasti.truefoundry.com get : pkg/installcheck/api.go APIServices().Get(ctx
elasti-check elasti.truefoundry.com/elastiservices list : pkg/installcheck/api.go ElastiServices(metav1.NamespaceAll).List(ctx
`

// accountOf returns the ServiceAccount that a role is for, or nothing when it is for users.
func accountOf(role string) string {
	name := role[strings.LastIndex(role, "/")+1:]
	for _, account := range []string{"elasti-apiserver", "elasti-resolver", "elasti-check"} {
		if strings.HasPrefix(name, account) {
			return account
		}
	}
	return ""
}

// usesByPermission returns the places of each permission in the table above.
func usesByPermission(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for line := range strings.Lines(uses) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		permission, place, hasPlace := strings.Cut(line, " : ")
		words := strings.Fields(permission)
		if !hasPlace || len(words) < 3 {
			t.Fatalf("the line %q does not have an account, what it needs, verbs and a place", line)
		}
		for what := range strings.SplitSeq(words[1], ",") {
			for _, verb := range words[2:] {
				key := words[0] + " " + what + " " + verb
				found[key] = append(found[key], place)
			}
		}
	}
	return found
}

// Each permission of a component is used by its code: one that is not used any more is
// taken away.
func TestEachPermissionIsUsed(t *testing.T) {
	used := usesByPermission(t)
	granted := map[string]bool{}
	for _, rendering := range renderings(t) {
		for _, grant := range grantsOf(t, rendering.objects) {
			role, permission, _ := strings.Cut(grant, " ")
			account := accountOf(role)
			if account == "" {
				continue
			}
			permission = account + " " + permission
			if !granted[permission] && used[permission] == nil {
				t.Errorf("no line says which code needs %q, which %s of %s grants: take it away, or add its use", permission, role, rendering.name)
			}
			granted[permission] = true
		}
	}
	for _, permission := range slices.Sorted(maps.Keys(used)) {
		if !granted[permission] {
			t.Errorf("%q is used by the code, and no role grants it", permission)
		}
		for _, place := range used[permission] {
			file, text, _ := strings.Cut(place, " ")
			if !hasCode(t, file, text) {
				t.Errorf("%q is not used any more: %s has no %q", permission, file, text)
			}
		}
	}
}

// hasCode reports whether a file of the repository has a text in a line that is no comment.
func hasCode(t *testing.T, file, text string) bool {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repositoryDirectory, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		code, _, _ := strings.Cut(line, "//")
		if strings.Contains(code, text) {
			return true
		}
	}
	return false
}
