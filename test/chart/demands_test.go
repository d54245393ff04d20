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
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// alternatives are groups of values that exclude each other, beside the default.
var alternatives = [][]string{
	{"storage: {type: embedded}", "storage: {type: etcd}"},
	{"tls: {type: cert-manager}", "tls: {type: existingSecret, existingSecret: {name: mine}}"},
	{"openshift: {enabled: true}"},
	{"allowedNamespaces: [shop, elasti-system]"},
	{`
elastiController: {hostNetwork: {enabled: true}, port: 10443, hostUsers: true, commonAnnotations: {a: b}, manager: {extraArgs: [--v=2]}}
elastiResolver: {autoscaling: {enabled: true}, hostUsers: false, podAnnotations: {a: b}, extraVolumes: [{name: a, emptyDir: {}}]}
`},
	{`
global: {enableMonitoring: true, metricsToken: {existingSecret: f}, labels: {a: b}, annotations: {c: d}, imagePullSecrets: [e]}
networkPolicy: {enabled: true, elastiControllerEgress: [{}]}
priorityClass: {create: false, name: ""}
`},
}

// podMonitors are for both components. They need a value that a group above has.
const podMonitors = `
global: {metricsToken: {existingSecret: a}}
elastiController: {podMonitor: {enabled: true}}
elastiResolver: {podMonitor: {enabled: true}}
`

// combinations returns the default, each alternative, each pair of two groups, one of every
// group, and what combines with none.
func combinations() []string {
	all := []string{"", podMonitors}
	everything := ""
	for i, group := range alternatives {
		everything += group[0] + "\n"
		for _, one := range group {
			all = append(all, one)
			for _, others := range alternatives[i+1:] {
				for _, other := range others {
					all = append(all, one+"\n"+other)
				}
			}
		}
	}
	return append(all, everything)
}

func TestRenderingTwiceGivesTheSameInEachVersionOfHelm(t *testing.T) {
	for _, values := range combinations() {
		var first map[string]string
		for _, version := range slices.Sorted(maps.Keys(helmVersions)) {
			for range 2 {
				files, err := helmVersions[version](parseValues(t, values))
				if err != nil {
					t.Fatalf("%s: %s: %v", version, values, err)
				}
				if first == nil {
					first = files
				}
				if !reflect.DeepEqual(files, first) {
					t.Errorf("%s: %s: the files differ", version, values)
				}
			}
		}
	}
}

// certManager is the version of cert-manager's kinds, whose fields are not known here.
const certManager = "cert-manager.io/v1"

func TestObjectsHaveOnlyFieldsOfTheirKinds(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(apiregistrationv1.AddToScheme(scheme))
	utilruntime.Must(monitoringv1.AddToScheme(scheme))
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, values := range combinations() {
		objects := renderChart(t, values)
		byID(t, objects)
		for _, each := range objects {
			if each["apiVersion"] == certManager {
				continue
			}
			text, err := json.Marshal(each)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := decoder.Decode(text, nil, nil); err != nil {
				t.Errorf("%s: %s: %v", values, each.id(), err)
			}
		}
	}
}

// The cluster drops empty fields: tools that compare would see a difference for ever.
func TestNothingIsRenderedThatTheClusterDrops(t *testing.T) {
	for _, values := range combinations() {
		for _, each := range renderChart(t, values) {
			for _, path := range emptyIn("", map[string]any(each)) {
				// These say something: all objects, all pods, an issuer that signs itself.
				if path != ".spec.selfSigned" && !strings.HasPrefix(path, ".spec.matchConstraints.") && !strings.HasPrefix(path, ".spec.egress") && !strings.HasPrefix(path, ".spec.template.spec.volumes") {
					t.Errorf("%s: %s has an empty %s", values, each.id(), path)
				}
			}
			if each["kind"] == "APIService" && at(each, "spec", "insecureSkipTLSVerify") != nil {
				t.Errorf("%s: %s says whether the certificate is verified: leave it out", values, each.id())
			}
		}
	}
}

// emptyIn returns the paths of null, empty maps and empty lists.
func emptyIn(path string, value any) []string {
	var found []string
	switch value := value.(type) {
	case nil:
		return []string{path}
	case map[string]any:
		for key, each := range value {
			found = append(found, emptyIn(path+"."+key, each)...)
		}
		if len(value) == 0 {
			return []string{path}
		}
	case []any:
		for _, each := range value {
			found = append(found, emptyIn(path+"[]", each)...)
		}
		if len(value) == 0 {
			return []string{path}
		}
	}
	return found
}

// pods returns the pods of Deployments and Jobs, by the id of these.
func pods(t *testing.T, objects []object) map[string]*corev1.PodTemplateSpec {
	t.Helper()
	pods := map[string]*corev1.PodTemplateSpec{}
	for _, each := range objects {
		template, found := at(each, "spec", "template").(map[string]any)
		if !found {
			continue
		}
		pod := &corev1.PodTemplateSpec{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
			t.Fatalf("%s: %v", each.id(), err)
		}
		pods[each.id()] = pod
	}
	if len(pods) == 0 {
		t.Fatal("there are no pods")
	}
	return pods
}

func TestPodsSatisfyTheRestrictedStandard(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	check := func(source string, objects []object) {
		for id, pod := range pods(t, objects) {
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &metav1.ObjectMeta{}, &pod.Spec))
			usesNode := pod.Spec.HostNetwork
			if result.Allowed == usesNode {
				t.Errorf("%s: %s on the network of the node (%t): allowed %t: %s", source, id, usesNode, result.Allowed, result.ForbiddenDetail())
			}
		}
	}
	for _, values := range combinations() {
		check(values, renderChart(t, values))
	}
	for _, source := range sources {
		check("the kustomization of "+source.name, kustomize(t, source.kustomization))
	}
}

// OpenShift gives each namespace IDs of its own, and rejects pods that fix others.
func TestPodsFixNoIDsOnOpenShift(t *testing.T) {
	for _, values := range combinations() {
		if !strings.Contains(values, "openshift") {
			continue
		}
		for id, pod := range pods(t, renderChart(t, values)) {
			if context := pod.Spec.SecurityContext; context.RunAsUser != nil || context.RunAsGroup != nil || context.FSGroup != nil || len(context.SupplementalGroups) > 0 {
				t.Errorf("%s: %s has the IDs %+v", values, id, context)
			}
			for _, container := range pod.Spec.Containers {
				if context := container.SecurityContext; context.RunAsUser != nil || context.RunAsGroup != nil {
					t.Errorf("%s: the container %s of %s has the IDs %+v", values, container.Name, id, context)
				}
			}
		}
	}
}

// The notes are what an administrator sees first.
func TestNotesSayWhatComesNext(t *testing.T) {
	notes := func(values string) string {
		files, err := renderWithHelm4(parseValues(t, values))
		if err != nil {
			t.Fatal(err)
		}
		return files["elasti/templates/NOTES.txt"]
	}
	for _, want := range []string{"namespace elasti-system", "helm test elasti --namespace elasti-system", "kind: ElastiService", "kubectl get elastiservices --all-namespaces"} {
		if text := notes(""); !strings.Contains(text, want) {
			t.Errorf("the notes do not say %q:\n%s", want, text)
		}
	}
	for values, want := range map[string]string{
		"check: {enabled: false}":                                   "kubectl get apiservice v1alpha1.elasti.truefoundry.com",
		"allowedNamespaces: [shop, blog]":                           "shop, blog",
		"apiService: {create: false}":                               "not part of this release",
		"tls: {type: existingSecret, existingSecret: {name: mine}}": "no certificate authority",
		"elastiController: {hostNetwork: {enabled: true}}":          "must not enforce the",
	} {
		if text := notes(values); !strings.Contains(text, want) {
			t.Errorf("%s: the notes do not say %q:\n%s", values, want, text)
		}
		if text := notes(""); strings.Contains(text, want) {
			t.Errorf("the notes say %q without a reason", want)
		}
	}
}
