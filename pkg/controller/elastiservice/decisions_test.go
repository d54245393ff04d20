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
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

func TestDecideMode(t *testing.T) {
	const proxy, serve = v1alpha1.ModeProxy, v1alpha1.ModeServe
	for _, test := range []struct {
		name  string
		facts modeFacts
		want  v1alpha1.Mode
	}{
		{"nothing is ready", modeFacts{}, proxy},
		{"nothing is ready, nothing is known of the target", modeFacts{}, proxy},
		{"ready", modeFacts{readyEndpoints: 1}, serve},
		{"ready, slice still in place", modeFacts{readyEndpoints: 1, sliceInPlace: true}, serve},
		{"ready, policy Always", modeFacts{readyEndpoints: 1, always: true}, proxy},
		{"ready, being put to sleep", modeFacts{readyEndpoints: 1, descending: true}, proxy},
		{"ready, put to sleep, which is not seen yet", modeFacts{readyEndpoints: 1, slept: true}, proxy},
		{"just scaled to zero, endpoints still ready", modeFacts{readyEndpoints: 1, atZero: true, leaving: true}, proxy},
		{"scaled to zero long ago, other pods are ready", modeFacts{readyEndpoints: 1, atZero: true, sliceInPlace: true}, serve},
		{"at zero at a restart, other pods are ready", modeFacts{readyEndpoints: 1, atZero: true}, serve},
		{"at zero at a restart, the last pods are leaving", modeFacts{readyEndpoints: 1, atZero: true, podsLeft: true, sliceInPlace: true}, proxy},
		{"woken at once, the pods of the last time still ready", modeFacts{readyEndpoints: 1, leaving: true, podsLeft: true, sliceInPlace: true}, proxy},
		{"woken at once, the pods of the last time gone", modeFacts{readyEndpoints: 1, podsLeft: true, sliceInPlace: true}, serve},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, why := decideMode(test.facts); got != test.want || why == "" {
				t.Errorf("got %s (%s), want %s", got, why, test.want)
			}
		})
	}
}

func TestDecideDescent(t *testing.T) {
	ready := descentFacts{requested: true, scaleKnown: true, resolversReady: true, sliceInPlace: -1}
	with := func(change func(*descentFacts)) descentFacts {
		facts := ready
		change(&facts)
		return facts
	}
	for _, test := range []struct {
		name  string
		facts descentFacts
		want  descentStep
	}{
		{"not requested", with(func(f *descentFacts) { f.requested = false }), descentNone},
		{"scale not known", with(func(f *descentFacts) { f.scaleKnown = false }), descentBlocked},
		{"sleeps already", with(func(f *descentFacts) { f.atZero = true }), descentDone},
		{"sleeps already, no resolver", with(func(f *descentFacts) { f.atZero, f.resolversReady = true, false }), descentDone},
		{"used after all", with(func(f *descentFacts) { f.used, f.sliceInPlace = true, convergeTime }), descentCalledOff},
		{"used, but it sleeps", with(func(f *descentFacts) { f.used, f.atZero = true, true }), descentDone},
		{"no resolver", with(func(f *descentFacts) { f.resolversReady = false }), descentBlocked},
		{"slice not in place", ready, descentConverge},
		{"slice just in place", with(func(f *descentFacts) { f.sliceInPlace = 0 }), descentConverge},
		{"slice in place", with(func(f *descentFacts) { f.sliceInPlace = convergeTime }), descentScale},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, why := decideDescent(test.facts); got != test.want || why == "" {
				t.Errorf("got %d (%s), want %d", got, why, test.want)
			}
		})
	}
}

func TestJudgeService(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*corev1.Service)
		reason string
		says   string
	}{
		{"only TCP", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:2] }, v1alpha1.ReasonFound, "exists"},
		{"UDP too", func(*corev1.Service) {}, v1alpha1.ReasonPortsNotProxied, "53/UDP"},
		{"only UDP", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[2:] }, v1alpha1.ReasonServiceNotSupported, "no TCP port"},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }, v1alpha1.ReasonServiceNotSupported, "headless"},
		{"ExternalName", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, v1alpha1.ReasonServiceNotSupported, "ExternalName"},
		{"no selector", func(s *corev1.Service) { s.Spec.Selector = nil }, v1alpha1.ReasonServiceNotSupported, "selector"},
	} {
		t.Run(test.name, func(t *testing.T) {
			service := cartService()
			test.change(service)
			got := judgeService("cart", service)
			if got.status != metav1.ConditionTrue || got.reason != test.reason || !strings.Contains(got.message, test.says) {
				t.Errorf("got %+v", got)
			}
		})
	}
	if got := judgeService("cart", nil); got.status != metav1.ConditionFalse || got.reason != v1alpha1.ReasonNotFound {
		t.Errorf("got %+v", got)
	}
}

func TestJudgeTarget(t *testing.T) {
	ref := cartElastiService().Spec.ScaleTargetRef
	known := &metav1.Condition{Type: v1alpha1.ConditionTargetFound, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonFound, Message: "as before"}
	resource := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for _, test := range []struct {
		name        string
		observation targetObservation
		before      *metav1.Condition
		status      metav1.ConditionStatus
		reason      string
	}{
		{"found", targetObservation{target: &observedTarget{}, scale: &observedScale{}}, nil, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"not known yet", targetObservation{pending: true}, nil, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"not known for now", targetObservation{pending: true}, known, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"server does not answer", failedObservation(fmt.Errorf("timeout")), known, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"not there", targetObservation{problem: apierrors.NewNotFound(resource, "cart")}, known, metav1.ConditionFalse, v1alpha1.ReasonNotFound},
		{"forbidden", failedObservation(apierrors.NewForbidden(resource, "cart", nil)), known, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"kind missing", failedObservation(&scaling.KindError{Problem: scaling.KindNotServed}), known, metav1.ConditionFalse, v1alpha1.ReasonKindNotServed},
		{"kind without scale", failedObservation(&scaling.KindError{Problem: scaling.KindNotScalable}), known, metav1.ConditionFalse, v1alpha1.ReasonKindNotScalable},
		{"kind malformed", failedObservation(&scaling.KindError{Problem: scaling.KindInvalid}), known, metav1.ConditionFalse, v1alpha1.ReasonKindInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := judgeTarget(ref, test.observation, test.before)
			if got.status != test.status || got.reason != test.reason || got.message == "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestJudgeReadyReportsTheFirstProblem(t *testing.T) {
	service := cartService()
	service.Spec.Ports = service.Spec.Ports[:2]
	found, resolver, free := yes(v1alpha1.ReasonFound, "found"), yes(v1alpha1.ReasonResolverReady, "ready"), no(v1alpha1.ReasonNoConflict, "free")
	for _, test := range []struct {
		name                                string
		service, target, resolver, conflict verdict
		problems                            []verdict
		status                              metav1.ConditionStatus
		reason                              string
	}{
		{"all well", found, found, resolver, free, nil, metav1.ConditionTrue, v1alpha1.ReasonReady},
		{"conflict", no(v1alpha1.ReasonNotFound, "x"), found, resolver, yes(v1alpha1.ReasonServiceTaken, "x"), nil, metav1.ConditionFalse, v1alpha1.ReasonServiceTaken},
		{"no Service", no(v1alpha1.ReasonNotFound, "x"), no(v1alpha1.ReasonNotFound, "x"), resolver, free, nil, metav1.ConditionFalse, "ServiceNotFound"},
		{"Service not supported", yes(v1alpha1.ReasonServiceNotSupported, "x"), found, resolver, free, nil, metav1.ConditionFalse, v1alpha1.ReasonServiceNotSupported},
		{"no proxy port", found, found, resolver, free, []verdict{no(v1alpha1.ReasonProxyPortsExhausted, "x")}, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted},
		{"no target", found, no(v1alpha1.ReasonNotFound, "x"), resolver, free, nil, metav1.ConditionFalse, "TargetNotFound"},
		{"target unknown", found, unknown(v1alpha1.ReasonTargetUnknown, "x"), resolver, free, nil, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"no resolver", found, found, no(v1alpha1.ReasonNoReadyResolver, "x"), free, nil, metav1.ConditionFalse, v1alpha1.ReasonNoReadyResolver},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := judgeReady(test.service, test.target, test.resolver, test.conflict, service, test.problems)
			if got.status != test.status || got.reason != test.reason {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestJudgeResolversWaitsForTheGracePeriod(t *testing.T) {
	ready := &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolverReady, Message: "as before"}
	if got := judgeResolvers(resolversMissing, time.Now(), ready); got.status != metav1.ConditionTrue || got.message != "as before" {
		t.Errorf("missing for a moment: %+v", got)
	}
	if got := judgeResolvers(resolversMissing, time.Now(), nil); got.status != metav1.ConditionUnknown {
		t.Errorf("missing from the start: %+v", got)
	}
	if got := judgeResolvers(resolversGone, time.Now(), ready); got.status != metav1.ConditionFalse {
		t.Errorf("gone: %+v", got)
	}
}

func TestWinnerIsTheOldest(t *testing.T) {
	at := func(name string, seconds int64) *v1alpha1.ElastiService {
		return &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(seconds, 0)}}
	}
	if got := winner([]*v1alpha1.ElastiService{at("a", 3), at("b", 1), at("c", 2)}); got.Name != "b" {
		t.Errorf("got %s", got.Name)
	}
	if got := winner([]*v1alpha1.ElastiService{at("b", 1), at("a", 1)}); got.Name != "a" {
		t.Errorf("of the same age: got %s", got.Name)
	}
	if got := winner(nil); got != nil {
		t.Errorf("got %s", got.Name)
	}
}

func TestNamesFitAndDiffer(t *testing.T) {
	long := strings.Repeat("a", 62)
	names := map[string]bool{}
	for _, service := range []string{"cart", long + "b", long + "c"} {
		name := PrivateServiceName(service)
		if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		names[name] = true
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			for number := range 2 {
				name := resolverSliceName(service, family, number)
				if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
					t.Errorf("%s: %v", name, problems)
				}
				names[name] = true
			}
		}
	}
	if len(names) != 15 {
		t.Errorf("%d names, want 15 that differ", len(names))
	}
	// The names that KubeElasti gives.
	if got, want := PrivateServiceName("cart"), "elasti-cart-pvt-1c42ddc028"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := resolverSliceName("cart", discoveryv1.AddressTypeIPv4, 0), "elasti-cart-endpointslice-to-resolver-1c42ddc028"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestReadinessProbes(t *testing.T) {
	container := func(probe *corev1.ProbeHandler) corev1.Container {
		found := corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
		if probe != nil {
			found.ReadinessProbe = &corev1.Probe{ProbeHandler: *probe, TimeoutSeconds: 3}
		}
		return found
	}
	http := &corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("web"), Scheme: "HTTPS", HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "cart"}}}}
	httpAction := v1alpha1.ReadinessProbeAction{TimeoutSeconds: 3, HTTPGet: &v1alpha1.HTTPGetAction{Path: "/ready", Port: 8080, Scheme: "HTTPS", HTTPHeaders: []v1alpha1.HTTPHeader{{Name: "Host", Value: "cart"}}}}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container(&corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Service: ptr.To("health")}})
	sidecar.RestartPolicy = &always
	for _, test := range []struct {
		name string
		pod  corev1.PodSpec
		want *v1alpha1.ReadinessProbes
	}{
		{"no probe", corev1.PodSpec{Containers: []corev1.Container{container(nil)}}, &v1alpha1.ReadinessProbes{}},
		{"HTTP with a named port", corev1.PodSpec{Containers: []corev1.Container{container(http)}}, &v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{httpAction}}},
		{"TCP and a container without", corev1.PodSpec{Containers: []corev1.Container{container(nil), container(&corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(5432)}})}},
			&v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 3, TCPSocket: &v1alpha1.TCPSocketAction{Port: 5432}}}}},
		{"gRPC in a sidecar", corev1.PodSpec{InitContainers: []corev1.Container{sidecar}, Containers: []corev1.Container{container(nil)}},
			&v1alpha1.ReadinessProbes{Probes: []v1alpha1.ReadinessProbeAction{{TimeoutSeconds: 3, GRPC: &v1alpha1.GRPCAction{Port: 9000, Service: "health"}}}}},
		{"exec", corev1.PodSpec{Containers: []corev1.Container{container(http), container(&corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}})}}, nil},
		{"another host", corev1.PodSpec{Containers: []corev1.Container{container(&corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "example.com", Port: intstr.FromInt32(80)}})}}, nil},
		{"unknown port", corev1.PodSpec{Containers: []corev1.Container{container(&corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("db")}})}}, nil},
		{"readiness gates", corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/ok"}}, Containers: []corev1.Container{container(http)}}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := readinessProbes(&test.pod)
			if (got == nil) != (test.want == nil) || !equality.Semantic.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestTargetsKeepNoPodTemplate(t *testing.T) {
	kept, err := keepTarget(schema.GroupResource{Group: "apps", Resource: "deployments"})(deployment("cart", 2, 1, 7))
	if err != nil {
		t.Fatal(err)
	}
	target := kept.(*observedTarget)
	if target.ResourceVersion != "7" || *target.scale != (observedScale{wanted: 2, existing: 1, ready: 1}) || len(target.probes.Probes) != 1 {
		t.Errorf("kept %+v", target)
	}
	if again, err := keepTarget(schema.GroupResource{})(target); err != nil || again != kept {
		t.Errorf("the second time: %v, %v", again, err)
	}
}

func TestOnlyReadyEndpointsCount(t *testing.T) {
	for _, test := range []struct {
		name       string
		conditions discoveryv1.EndpointConditions
		want       bool
	}{
		{"ready", discoveryv1.EndpointConditions{Ready: ptr.To(true)}, true},
		{"not ready", discoveryv1.EndpointConditions{Ready: ptr.To(false)}, false},
		{"not said", discoveryv1.EndpointConditions{}, false},
		{"terminating", discoveryv1.EndpointConditions{Ready: ptr.To(true), Terminating: ptr.To(true)}, false},
		{"serving while terminating", discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true)}, false},
	} {
		if got := isReady(&discoveryv1.Endpoint{Conditions: test.conditions}); got != test.want {
			t.Errorf("%s: got %t", test.name, got)
		}
	}
}

func TestResolverSlicesOfFamiliesAndMany(t *testing.T) {
	public := cartService()
	public.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	ready := func(family discoveryv1.AddressType) []discoveryv1.Endpoint {
		if family == discoveryv1.AddressTypeIPv6 {
			return nil
		}
		return make([]discoveryv1.Endpoint, maxEndpoints+1)
	}
	slices := desiredResolverSlices(cartElastiService(), public, []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10001}}, ready)
	if len(slices) != 3 {
		t.Fatalf("%d slices, want 3", len(slices))
	}
	sizes := []int{maxEndpoints, 1, 0}
	for i, slice := range slices {
		if len(slice.Endpoints) != sizes[i] {
			t.Errorf("%s has %d endpoints, want %d", slice.Name, len(slice.Endpoints), sizes[i])
		}
		if *slice.Ports[0].Name != "" || *slice.Ports[0].Port != 10001 {
			t.Errorf("%s has ports %+v", slice.Name, slice.Ports)
		}
	}
	if slices[2].AddressType != discoveryv1.AddressTypeIPv6 || !strings.HasSuffix(slices[2].Name, "-ipv6") {
		t.Errorf("the last slice is %s %s", slices[2].Name, slices[2].AddressType)
	}
}
