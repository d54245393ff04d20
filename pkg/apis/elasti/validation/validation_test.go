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

package validation_test

import (
	"fmt"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

// valid returns an ElastiService that is accepted and has every part.
func valid() *elasti.ElastiService {
	return &elasti.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Name: "cart", Namespace: "shop", ResourceVersion: "1"},
		Spec: elasti.ElastiServiceSpec{
			ScaleTargetRef:    elasti.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"},
			Service:           "cart",
			MinTargetReplicas: ptr.To[int32](1),
			CooldownPeriod:    ptr.To[int32](900),
			Triggers:          []elasti.ScaleTrigger{trigger("prometheus", `{"query":"up","threshold":"0.5"}`)},
			Autoscaler:        &elasti.AutoscalerSpec{Type: elasti.AutoscalerKEDA, Name: "cart"},
			EnabledPeriod:     &elasti.EnabledPeriod{Schedule: "0 0 * * *", Duration: "24h", TimeZone: "UTC"},
			ProbeResponse: []elasti.ProbeResponseRule{{
				Path:        &elasti.PathMatch{Type: elasti.PathMatchExact, Value: "/healthz"},
				Headers:     []elasti.ValueMatch{{Type: elasti.ValueMatchRegularExpression, Name: "User-Agent", Value: "GoogleHC/.*"}},
				QueryParams: []elasti.ValueMatch{{Type: elasti.ValueMatchExact, Name: "full", Value: ""}},
				Method:      "GET",
				Response:    elasti.ProbeResponse{Status: 200, Body: "asleep"},
			}},
			Proxy: &elasti.ProxySpec{
				Policy: elasti.ProxyWhenAsleep, HoldTimeoutSeconds: ptr.To[int32](600), MaxPending: ptr.To[int32](10000),
				MaxConcurrencyPerPod: ptr.To[int32](0), Readiness: elasti.ReadinessProbe,
				ConvergenceSeconds: ptr.To[int32](5), AllowedClients: []string{"10.0.0.0/8", "2001:db8::/32"},
				Passive: &elasti.PassiveSpec{
					WellKnown: ptr.To(true), UserAgents: []string{"uptime/"}, Paths: []string{"/metrics"}, Ports: []int32{9090},
				},
				ClientAddress: &elasti.ClientAddressSpec{Header: elasti.ClientAddressForwarded, ProxyProtocol: true},
			},
		},
	}
}

func trigger(triggerType, metadata string) elasti.ScaleTrigger {
	return elasti.ScaleTrigger{Type: triggerType, Metadata: &runtime.RawExtension{Raw: []byte(metadata)}}
}

func TestValidateElastiServiceAccepts(t *testing.T) {
	for name, change := range map[string]func(*elasti.ElastiServiceSpec){
		"every part": func(*elasti.ElastiServiceSpec) {},
		"only what is required": func(spec *elasti.ElastiServiceSpec) {
			spec.Triggers, spec.Autoscaler, spec.EnabledPeriod, spec.ProbeResponse = nil, nil, nil, nil
		},
		"legacy deployments": func(spec *elasti.ElastiServiceSpec) { spec.ScaleTargetRef.Kind = "deployments" },
		"legacy rollouts": func(spec *elasti.ElastiServiceSpec) {
			spec.ScaleTargetRef = elasti.ScaleTargetRef{APIVersion: "argoproj.io/v1alpha1", Kind: "rollouts", Name: "cart"}
		},
		"a kind of the core group": func(spec *elasti.ElastiServiceSpec) {
			spec.ScaleTargetRef = elasti.ScaleTargetRef{APIVersion: "v1", Kind: "ReplicationController", Name: "cart"}
		},
		"any kind with a scale": func(spec *elasti.ElastiServiceSpec) {
			spec.ScaleTargetRef = elasti.ScaleTargetRef{APIVersion: "machines.example.com/v2beta1", Kind: "Pool", Name: "cart.eu"}
		},
		"no cooldown":          func(spec *elasti.ElastiServiceSpec) { spec.CooldownPeriod = ptr.To[int32](0) },
		"the longest cooldown": func(spec *elasti.ElastiServiceSpec) { spec.CooldownPeriod = ptr.To[int32](604800) },
		"a method of WebDAV":   func(spec *elasti.ElastiServiceSpec) { spec.ProbeResponse[0].Method = "PROPFIND" },
		"a rule for everything": func(spec *elasti.ElastiServiceSpec) {
			spec.ProbeResponse = []elasti.ProbeResponseRule{{Response: elasti.ProbeResponse{Status: 503}}}
		},
		"a traffic trigger": func(spec *elasti.ElastiServiceSpec) {
			spec.Triggers, spec.Proxy.Policy = []elasti.ScaleTrigger{{Type: "traffic"}}, elasti.ProxyAlways
		},
		"16 triggers": func(spec *elasti.ElastiServiceSpec) {
			spec.Triggers = repeat(trigger("cpu", `{"threshold":"50m"}`), 16)
		},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := valid()
			change(&elastiService.Spec)
			if errs := validation.ValidateElastiService(elastiService); len(errs) > 0 {
				t.Errorf("got %v, want it accepted", errs)
			}
		})
	}
}

func networks(count int) []string {
	networks := make([]string, count)
	for i := range networks {
		networks[i] = fmt.Sprintf("10.%d.0.0/16", i)
	}
	return networks
}

func repeat[T any](element T, count int) []T {
	elements := make([]T, count)
	for i := range elements {
		elements[i] = element
	}
	return elements
}

// rejectedSpecs are changes of a valid spec, and the field that is to blame.
var rejectedSpecs = []struct {
	field  string
	kind   field.ErrorType
	change func(*elasti.ElastiServiceSpec)
}{
	{"spec.scaleTargetRef.apiVersion", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.APIVersion = "" }},
	{"spec.scaleTargetRef.apiVersion", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.APIVersion = "apps/v1/beta" }},
	{"spec.scaleTargetRef.apiVersion", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.APIVersion = "../v1" }},
	{"spec.scaleTargetRef.apiVersion", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.APIVersion = "apps/.." }},
	{"spec.scaleTargetRef.kind", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.Kind = "" }},
	{"spec.scaleTargetRef.kind", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.Kind = "deployments/scale" }},
	{"spec.scaleTargetRef.name", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.Name = "" }},
	{"spec.scaleTargetRef.name", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.Name = "a/b" }},
	{"spec.scaleTargetRef", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ScaleTargetRef.APIVersion = "elasti.truefoundry.com/v1alpha1" }},
	{"spec.service", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.Service = "" }},
	{"spec.service", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Service = "cart.shop" }},
	{"spec.service", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Service = strings.Repeat("a", 64) }},
	{"spec.minTargetReplicas", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.MinTargetReplicas = nil }},
	{"spec.minTargetReplicas", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.MinTargetReplicas = ptr.To[int32](0) }},
	{"spec.cooldownPeriod", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.CooldownPeriod = ptr.To[int32](-1) }},
	{"spec.cooldownPeriod", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.CooldownPeriod = ptr.To[int32](604801) }},
	{"spec.triggers", field.ErrorTypeTooMany, func(s *elasti.ElastiServiceSpec) { s.Triggers = repeat(s.Triggers[0], 17) }},
	{"spec.triggers[0].type", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.Triggers[0].Type = "" }},
	{"spec.triggers[0].type", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.Triggers[0].Type = "Prometheus" }},
	{"spec.triggers[0].metadata.query", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.Triggers[0] = trigger("prometheus", `{"threshold":1}`) }},
	{"spec.triggers[0].metadata.threshold", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) {
		s.Triggers[0] = trigger("prometheus", `{"query":"up","threshold":"a"}`)
	}},
	{"spec.proxy.policy", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Triggers[0] = elasti.ScaleTrigger{Type: "traffic"} }},
	{"spec.autoscaler.type", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.Autoscaler.Type = "" }},
	{"spec.autoscaler.type", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.Autoscaler.Type = "vpa" }},
	{"spec.autoscaler.name", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.Autoscaler.Name = "" }},
	{"spec.autoscaler.name", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Autoscaler.Name = "Cart" }},
	{"spec.enabledPeriod.schedule", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.EnabledPeriod.Schedule = "@every 1h" }},
	{"spec.enabledPeriod.duration", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.EnabledPeriod.Duration = "8" }},
	{"spec.enabledPeriod.timeZone", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.EnabledPeriod.TimeZone = "CEST+1" }},
	{"spec.probeResponse", field.ErrorTypeTooMany, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse = repeat(s.ProbeResponse[0], 33) }},
	{"spec.probeResponse[0].path.type", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Path.Type = "Prefix" }},
	{"spec.probeResponse[0].path.value", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Path.Value = "healthz" }},
	{"spec.probeResponse[0].path.value", field.ErrorTypeTooLong, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Path.Value = "/" + strings.Repeat("a", 1024) }},
	{"spec.probeResponse[0].path.value", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) {
		s.ProbeResponse[0].Path = &elasti.PathMatch{Type: elasti.PathMatchRegularExpression, Value: "("}
	}},
	{"spec.probeResponse[0].headers", field.ErrorTypeTooMany, func(s *elasti.ElastiServiceSpec) {
		s.ProbeResponse[0].Headers = repeat(s.ProbeResponse[0].Headers[0], 17)
	}},
	{"spec.probeResponse[0].headers[0].name", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Headers[0].Name = "" }},
	{"spec.probeResponse[0].headers[0].name", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Headers[0].Name = "User Agent" }},
	{"spec.probeResponse[0].headers[0].type", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Headers[0].Type = "Regex" }},
	{"spec.probeResponse[0].headers[0].value", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Headers[0].Value = "a{2000}" }},
	{"spec.probeResponse[0].headers[0].value", field.ErrorTypeTooLong, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Headers[0].Value = strings.Repeat("a", 4097) }},
	{"spec.probeResponse[0].headers[0].value", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) {
		s.ProbeResponse[0].Headers[0].Value = strings.Repeat(".{1000}", 500)
	}},
	{"spec.probeResponse[10].headers[0].value", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) {
		s.ProbeResponse[0].Headers[0].Value = ".{990}"
		s.ProbeResponse = repeat(s.ProbeResponse[0], 11)
	}},
	{"spec.probeResponse[0].queryParams", field.ErrorTypeTooMany, func(s *elasti.ElastiServiceSpec) {
		s.ProbeResponse[0].QueryParams = repeat(s.ProbeResponse[0].QueryParams[0], 17)
	}},
	{"spec.probeResponse[0].queryParams[0].name", field.ErrorTypeRequired, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].QueryParams[0].Name = "" }},
	{"spec.probeResponse[0].method", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Method = "get" }},
	{"spec.probeResponse[0].method", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Method = "GET /" }},
	{"spec.probeResponse[0].response.status", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Response.Status = 302 }},
	{"spec.probeResponse[0].response.body", field.ErrorTypeTooLong, func(s *elasti.ElastiServiceSpec) { s.ProbeResponse[0].Response.Body = strings.Repeat("a", 65537) }},
	{"spec.proxy.policy", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.Proxy.Policy = "Never" }},
	{"spec.proxy.readiness", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.Proxy.Readiness = "Guess" }},
	{"spec.proxy.holdTimeoutSeconds", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.HoldTimeoutSeconds = ptr.To[int32](0) }},
	{"spec.proxy.holdTimeoutSeconds", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.HoldTimeoutSeconds = ptr.To[int32](86401) }},
	{"spec.proxy.maxPending", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.MaxPending = ptr.To[int32](0) }},
	{"spec.proxy.maxConcurrencyPerPod", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.MaxConcurrencyPerPod = ptr.To[int32](-1) }},
	{"spec.proxy.convergenceSeconds", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.ConvergenceSeconds = ptr.To[int32](0) }},
	{"spec.proxy.convergenceSeconds", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.ConvergenceSeconds = ptr.To[int32](601) }},
	{"spec.proxy.allowedClients[1]", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.AllowedClients[1] = "10.0.0.1" }},
	{"spec.proxy.allowedClients[1]", field.ErrorTypeDuplicate, func(s *elasti.ElastiServiceSpec) { s.Proxy.AllowedClients[1] = s.Proxy.AllowedClients[0] }},
	{"spec.proxy.allowedClients", field.ErrorTypeTooMany, func(s *elasti.ElastiServiceSpec) { s.Proxy.AllowedClients = networks(65) }},
	{"spec.proxy.passive.userAgents[0]", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.Passive.UserAgents[0] = "" }},
	{"spec.proxy.passive.userAgents[0]", field.ErrorTypeTooLong, func(s *elasti.ElastiServiceSpec) { s.Proxy.Passive.UserAgents[0] = strings.Repeat("a", 257) }},
	{"spec.proxy.passive.paths[0]", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.Passive.Paths[0] = "metrics" }},
	{"spec.proxy.passive.paths[0]", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.Passive.Paths[0] = "/metrics?all" }},
	{"spec.proxy.passive.ports[0]", field.ErrorTypeInvalid, func(s *elasti.ElastiServiceSpec) { s.Proxy.Passive.Ports[0] = 65536 }},
	{"spec.proxy.clientAddress.header", field.ErrorTypeNotSupported, func(s *elasti.ElastiServiceSpec) { s.Proxy.ClientAddress.Header = "X-Real-IP" }},
}

func TestValidateElastiServiceRejects(t *testing.T) {
	for _, test := range rejectedSpecs {
		t.Run(test.field+"/"+string(test.kind), func(t *testing.T) {
			elastiService := valid()
			test.change(&elastiService.Spec)
			errs := validation.ValidateElastiService(elastiService)
			if len(errs) != 1 || errs[0].Field != test.field || errs[0].Type != test.kind {
				t.Fatalf("got %v, want one error of type %q at %s", errs, test.kind, test.field)
			}
			if errs[0].Detail == "" {
				t.Errorf("%v does not say what to do", errs[0])
			}
			// The same goes for a change.
			updateErrs := validation.ValidateElastiServiceUpdate(elastiService, valid())
			if len(updateErrs) != 1 || updateErrs[0].Field != test.field {
				t.Errorf("update: got %v, want one error at %s", updateErrs, test.field)
			}
		})
	}
}

// An object that an earlier version accepted can still be deleted.
func TestUpdateValidatesChangedSpecsOnly(t *testing.T) {
	previous := valid()
	previous.Spec.EnabledPeriod.Schedule = "@every 1h"
	previous.Finalizers = []string{elasti.Finalizer}
	updated := previous.DeepCopy()
	updated.Finalizers = nil
	if errs := validation.ValidateElastiServiceUpdate(updated, previous); len(errs) > 0 {
		t.Errorf("got %v, want the removal of a finalizer accepted", errs)
	}
}

// oversized has parts that hold more than they may, each of which an earlier version
// accepted.
func oversized() map[string]func(*elasti.ElastiServiceSpec) {
	body := func(size int) elasti.ProbeResponseRule {
		return elasti.ProbeResponseRule{Response: elasti.ProbeResponse{Status: 200, Body: strings.Repeat("x", size)}}
	}
	return map[string]func(*elasti.ElastiServiceSpec){
		"bodies": func(spec *elasti.ElastiServiceSpec) {
			spec.ProbeResponse = []elasti.ProbeResponseRule{body(60 << 10), body(4<<10 + 1)}
		},
		"matchers": func(spec *elasti.ElastiServiceSpec) {
			matcher := elasti.ValueMatch{Type: elasti.ValueMatchExact, Name: "x", Value: strings.Repeat("x", 4096)}
			rule := body(0)
			rule.Headers, rule.QueryParams = repeat(matcher, 8), repeat(matcher, 8)
			spec.ProbeResponse = []elasti.ProbeResponseRule{rule}
		},
		"metadata": func(spec *elasti.ElastiServiceSpec) {
			spec.Triggers = repeat(trigger("prometheus", `{"query":"up","threshold":"0.5","note":"`+strings.Repeat("x", 32<<10)+`"}`), 2)
		},
		"enabled period": func(spec *elasti.ElastiServiceSpec) { spec.EnabledPeriod.Duration = strings.Repeat("0h", 256) + "1h" },
	}
}

// The server and each resolver keep all specs of all tenants in memory.
func TestSpecIsBounded(t *testing.T) {
	most := valid()
	most.Spec.ProbeResponse = []elasti.ProbeResponseRule{{Response: elasti.ProbeResponse{Status: 200, Body: strings.Repeat("x", 64<<10)}}}
	if errs := validation.ValidateElastiService(most); len(errs) > 0 {
		t.Errorf("one body of the greatest length: %v", errs)
	}
	for name, enlarge := range oversized() {
		elastiService := valid()
		enlarge(&elastiService.Spec)
		if errs := validation.ValidateElastiService(elastiService); len(errs) != 1 || len(errs[0].Error()) > 512 {
			t.Errorf("%s: %v, want one short error", name, errs)
		}
		if errs := validation.ValidateElastiServiceUpdate(elastiService, valid()); len(errs) != 1 {
			t.Errorf("%s, by an update: %v, want one error", name, errs)
		}
	}
}

// An earlier version accepted larger parts.
func TestUpdateDoesNotRejectTheSizeOfWhatDidNotChange(t *testing.T) {
	for name, enlarge := range oversized() {
		previous := valid()
		enlarge(&previous.Spec)
		updated := previous.DeepCopy()
		updated.Spec.CooldownPeriod = ptr.To[int32](100000)
		updated.Spec.Proxy.WaitingPage = true
		if errs := validation.ValidateElastiServiceUpdate(updated, previous); len(errs) > 0 {
			t.Errorf("%s: another field is changed: %v", name, errs)
		}
	}
}

func TestDeletionKeepsWhatItCleansUp(t *testing.T) {
	previous := valid()
	previous.DeletionTimestamp = ptr.To(metav1.Now())
	updated := previous.DeepCopy()
	updated.Spec.Service, updated.Spec.ScaleTargetRef.Name = "other", "other"
	errs := validation.ValidateElastiServiceUpdate(updated, previous)
	if len(errs) != 2 || errs[0].Field != "spec.service" || errs[1].Field != "spec.scaleTargetRef" {
		t.Errorf("got %v, want spec.service and spec.scaleTargetRef rejected", errs)
	}
	updated = previous.DeepCopy()
	updated.Spec.CooldownPeriod = ptr.To[int32](1)
	if errs := validation.ValidateElastiServiceUpdate(updated, previous); len(errs) > 0 {
		t.Errorf("got %v, want everything else accepted", errs)
	}
}

func TestValidateStatus(t *testing.T) {
	previous := valid()
	updated := valid()
	updated.Status = elasti.ElastiServiceStatus{
		Mode: elasti.ModeProxy,
		// The last two share a port.
		ProxyPorts: []elasti.ProxyPort{{Port: 80, ProxyPort: 10000}, {Port: 443, Name: "tls", ProxyPort: 8012}, {Port: 8443, Name: "admin", ProxyPort: 8012}},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Observed", LastTransitionTime: metav1.Now()}},
	}
	if errs := validation.ValidateElastiServiceStatusUpdate(updated, previous); len(errs) > 0 {
		t.Errorf("got %v, want it accepted", errs)
	}
	updated.Status = elasti.ElastiServiceStatus{
		Mode:       "asleep",
		ProxyPorts: []elasti.ProxyPort{{Port: 0, ProxyPort: 10000}, {Port: 443, ProxyPort: 70000}, {Port: 443, ProxyPort: 1}},
		Conditions: []metav1.Condition{{Type: "Ready", Status: "Perhaps", Reason: "Observed", LastTransitionTime: metav1.Now()}},
	}
	var fields []string
	for _, err := range validation.ValidateElastiServiceStatusUpdate(updated, previous) {
		fields = append(fields, err.Field)
	}
	want := "status.mode status.proxyPorts[0].port status.proxyPorts[1].proxyPort status.proxyPorts[2].port status.conditions[0].status"
	if got := strings.Join(fields, " "); got != want {
		t.Errorf("got errors at %s, want %s", got, want)
	}
}

func TestValidateEveryFieldOfTheStatus(t *testing.T) {
	probes := func(probe elasti.ReadinessProbeAction) elasti.ElastiServiceStatus {
		return elasti.ElastiServiceStatus{ReadinessProbes: &elasti.ReadinessProbes{Probes: []elasti.ReadinessProbeAction{probe}}}
	}
	const probe = "status.readinessProbes.probes[0]"
	for _, test := range []struct {
		field  string
		status elasti.ElastiServiceStatus
	}{
		{"", elasti.ElastiServiceStatus{ObservedGeneration: 3, Replicas: 2, ReadyReplicas: 1, PrivateService: "elasti-cart-pvt-0123456789"}},
		{"status.observedGeneration", elasti.ElastiServiceStatus{ObservedGeneration: -1}},
		{"status.replicas", elasti.ElastiServiceStatus{Replicas: -1}},
		{"status.readyReplicas", elasti.ElastiServiceStatus{ReadyReplicas: -1}},
		{"status.privateService", elasti.ElastiServiceStatus{PrivateService: "../secrets"}},
		{"", elasti.ElastiServiceStatus{ReadinessProbes: &elasti.ReadinessProbes{}}},
		{"", probes(elasti.ReadinessProbeAction{TimeoutSeconds: 1, HTTPGet: &elasti.HTTPGetAction{Path: "/", Port: 80, Scheme: "HTTPS"}})},
		{"", probes(elasti.ReadinessProbeAction{TCPSocket: &elasti.TCPSocketAction{Port: 80}})},
		{"", probes(elasti.ReadinessProbeAction{GRPC: &elasti.GRPCAction{Port: 80}})},
		{probe, probes(elasti.ReadinessProbeAction{})},
		{probe, probes(elasti.ReadinessProbeAction{TCPSocket: &elasti.TCPSocketAction{Port: 80}, GRPC: &elasti.GRPCAction{Port: 80}})},
		{probe + ".timeoutSeconds", probes(elasti.ReadinessProbeAction{TimeoutSeconds: -1, GRPC: &elasti.GRPCAction{Port: 80}})},
		{probe + ".httpGet.port", probes(elasti.ReadinessProbeAction{HTTPGet: &elasti.HTTPGetAction{Port: 0, Scheme: "HTTP"}})},
		{probe + ".httpGet.scheme", probes(elasti.ReadinessProbeAction{HTTPGet: &elasti.HTTPGetAction{Port: 80, Scheme: "FTP"}})},
		{probe + ".tcpSocket.port", probes(elasti.ReadinessProbeAction{TCPSocket: &elasti.TCPSocketAction{Port: 70000}})},
		{probe + ".grpc.port", probes(elasti.ReadinessProbeAction{GRPC: &elasti.GRPCAction{Port: -1}})},
	} {
		updated := valid()
		updated.Status = test.status
		var fields []string
		for _, err := range validation.ValidateElastiServiceStatusUpdate(updated, valid()) {
			fields = append(fields, err.Field)
		}
		if got := strings.Join(fields, " "); got != test.field {
			t.Errorf("%+v: got errors at %q, want %q", test.status, got, test.field)
		}
	}
}

func TestValidateWakeRequest(t *testing.T) {
	for _, test := range []struct {
		name, field string
		spec        elasti.WakeRequestSpec
	}{
		{"empty", "", elasti.WakeRequestSpec{}},
		{"full", "", elasti.WakeRequestSpec{Reason: "traffic is held", Pending: 3, Replicas: ptr.To[int32](2)}},
		{"a long reason", "spec.reason", elasti.WakeRequestSpec{Reason: strings.Repeat("a", 257)}},
		{"negative pending", "spec.pending", elasti.WakeRequestSpec{Pending: -1}},
		{"to zero", "spec.replicas", elasti.WakeRequestSpec{Replicas: ptr.To[int32](0)}},
		{"to too many", "spec.replicas", elasti.WakeRequestSpec{Replicas: ptr.To[int32](1 << 30)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			errs := validation.ValidateWakeRequest(&elasti.WakeRequest{Spec: test.spec})
			if (len(errs) > 0) != (test.field != "") || len(errs) > 0 && errs[0].Field != test.field {
				t.Errorf("got %v, want an error at %q", errs, test.field)
			}
		})
	}
}

func TestValidateScale(t *testing.T) {
	for replicas, accepted := range map[int32]bool{-1: false, 0: true, 1: true, 100000: true, 100001: false} {
		errs := validation.ValidateScale(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}})
		if (len(errs) == 0) != accepted {
			t.Errorf("%d replicas: got %v, want accepted=%v", replicas, errs, accepted)
		}
	}
}

func TestWarnings(t *testing.T) {
	elastiService := valid()
	if warnings := validation.Warnings(&elastiService.Spec); len(warnings) > 0 {
		t.Errorf("got %q, want none", warnings)
	}
	elastiService.Spec.Triggers[0] = trigger("prometheus", `{"query":"up","threshold":1,"interval":"5s"}`)
	elastiService.Spec.ProbeResponse = append(elastiService.Spec.ProbeResponse, elasti.ProbeResponseRule{Response: elasti.ProbeResponse{Status: 200}})
	warnings := strings.Join(validation.Warnings(&elastiService.Spec), "\n")
	for _, want := range []string{"spec.triggers[0].metadata.interval: ", "spec.probeResponse[1]: "} {
		if !strings.Contains(warnings, want) {
			t.Errorf("got %q, want a warning about %s", warnings, want)
		}
	}
}

func TestTrafficTriggersOutOfThePathAreWarnedAbout(t *testing.T) {
	for name, test := range map[string]struct {
		proxy *elasti.ProxySpec
		warns bool
	}{
		"not said":         {nil, true},
		"while asleep":     {&elasti.ProxySpec{Policy: elasti.ProxyWhenAsleep}, true},
		"policy not given": {&elasti.ProxySpec{}, true},
		"always":           {&elasti.ProxySpec{Policy: elasti.ProxyAlways}, false},
	} {
		elastiService := valid()
		elastiService.Spec.Triggers = []elasti.ScaleTrigger{{Type: "traffic"}}
		elastiService.Spec.Proxy = test.proxy
		warnings := strings.Join(validation.Warnings(&elastiService.Spec), "\n")
		if warns := strings.Contains(warnings, "spec.triggers[0]: ") && strings.Contains(warnings, "spec.proxy.policy"); warns != test.warns {
			t.Errorf("%s: got %q, want a warning: %t", name, warnings, test.warns)
		}
	}
}
