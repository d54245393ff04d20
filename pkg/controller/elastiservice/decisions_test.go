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
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
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
		{"ready, being put to sleep", modeFacts{readyEndpoints: 1, scalingDown: true}, proxy},
		{"ready, put to sleep, which is not seen yet", modeFacts{readyEndpoints: 1, scaledToZero: true}, proxy},
		{"just scaled to zero, endpoints still ready", modeFacts{readyEndpoints: 1, atZero: true, terminating: true}, proxy},
		{"scaled to zero long ago, other pods are ready", modeFacts{readyEndpoints: 1, atZero: true, sliceInPlace: true}, serve},
		{"at zero at a restart, other pods are ready", modeFacts{readyEndpoints: 1, atZero: true}, serve},
		{"at zero at a restart, the last pods are leaving", modeFacts{readyEndpoints: 1, atZero: true, podsLeft: true, sliceInPlace: true}, proxy},
		{"woken at once, the pods of the last time still ready", modeFacts{readyEndpoints: 1, terminating: true, podsLeft: true, sliceInPlace: true}, proxy},
		{"woken at once, the pods of the last time deleted", modeFacts{readyEndpoints: 1, podsLeft: true, sliceInPlace: true}, serve},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, why := decideMode(test.facts); got != test.want || why == "" {
				t.Errorf("got %s (%s), want %s", got, why, test.want)
			}
		})
	}
}

func TestDecideScaleDown(t *testing.T) {
	ready := scaleDownFacts{requested: true, scaleKnown: true, resolversReady: true, sliceInPlace: -1, convergence: DefaultConvergenceTime}
	with := func(change func(*scaleDownFacts)) scaleDownFacts {
		facts := ready
		change(&facts)
		return facts
	}
	for _, test := range []struct {
		name  string
		facts scaleDownFacts
		want  scaleDownStep
	}{
		{"not requested", with(func(f *scaleDownFacts) { f.requested = false }), scaleDownNone},
		{"scale not known", with(func(f *scaleDownFacts) { f.scaleKnown = false }), scaleDownBlocked},
		{"sleeps already", with(func(f *scaleDownFacts) { f.atZero = true }), scaleDownDone},
		{"sleeps already, no resolver", with(func(f *scaleDownFacts) { f.atZero, f.resolversReady = true, false }), scaleDownDone},
		{"has slept, and was woken", with(func(f *scaleDownFacts) { f.carriedOut, f.sliceInPlace = true, DefaultConvergenceTime }), scaleDownDone},
		{"would do harm", with(func(f *scaleDownFacts) { f.forbidden, f.sliceInPlace = true, DefaultConvergenceTime }), scaleDownForbidden},
		{"would have done harm, but it sleeps", with(func(f *scaleDownFacts) { f.forbidden, f.atZero = true, true }), scaleDownDone},
		{"used after all", with(func(f *scaleDownFacts) { f.used, f.sliceInPlace = true, DefaultConvergenceTime }), scaleDownCanceled},
		{"used, but it sleeps", with(func(f *scaleDownFacts) { f.used, f.atZero = true, true }), scaleDownDone},
		{"no resolver", with(func(f *scaleDownFacts) { f.resolversReady = false }), scaleDownBlocked},
		{"no private Service", with(func(f *scaleDownFacts) { f.unreachable, f.sliceInPlace = true, DefaultConvergenceTime }), scaleDownBlocked},
		{"the previous target is asleep", with(func(f *scaleDownFacts) { f.previousAsleep, f.sliceInPlace = true, DefaultConvergenceTime }), scaleDownBlocked},
		{"slice not in place", ready, scaleDownDrain},
		{"slice just in place", with(func(f *scaleDownFacts) { f.sliceInPlace = 0 }), scaleDownDrain},
		{"slice in place for a moment less than it must be", with(func(f *scaleDownFacts) {
			f.convergence, f.sliceInPlace = time.Minute, time.Minute-time.Millisecond
		}), scaleDownDrain},
		{"slice in place for as long as it must be", with(func(f *scaleDownFacts) { f.convergence, f.sliceInPlace = time.Minute, time.Minute }), scaleDownScale},
		{"slice in place", with(func(f *scaleDownFacts) { f.sliceInPlace = DefaultConvergenceTime }), scaleDownScale},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, why := decideScaleDown(test.facts); got != test.want || why == "" {
				t.Errorf("got %d (%s), want %d", got, why, test.want)
			}
		})
	}
}

// What resolvers report has the time of whichever replica it was reported to.
func TestTrafficSinceTheRequestForSleep(t *testing.T) {
	const second, minute = time.Second, time.Minute
	last := func(at time.Duration) v1alpha1.ResolverActivity {
		return v1alpha1.ResolverActivity{LastRequestTime: ptr.To(metav1.NewMicroTime(start.Add(at)))}
	}
	open := func(at time.Duration) v1alpha1.ResolverActivity {
		return v1alpha1.ResolverActivity{Open: 1, ReportTime: metav1.NewMicroTime(start.Add(at))}
	}
	for name, test := range map[string]struct {
		reported v1alpha1.ResolverActivity
		want     bool
	}{
		"a request before":                        {last(-minute), false},
		"a request since":                         {last(2 * second), true},
		"a request by a clock that is ahead":      {last(minute), true},
		"a request of the future":                 {last(10*second + clockSkew + 1), false},
		"open":                                    {open(10 * second), true},
		"open, reported by a clock that is ahead": {open(20 * second), true},
		"open, reported long ago":                 {open(-time.Hour), false},
		"open, reported in the future":            {open(time.Hour), false},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := cartElastiService()
			elastiService.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: triggers.TypeTraffic}}
			elastiService.Status.SleepRequestedTime = ptr.To(metav1.NewTime(start))
			elastiService.Status.Activity = []v1alpha1.ResolverActivity{test.reported}
			if got := usedSince(elastiService, start.Add(10*second), time.Time{}); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestConvergenceTimeIsThatOfTheElastiServiceOrTheInstallation(t *testing.T) {
	c := &Controller{options: Options{ConvergenceTime: 7 * time.Second}}
	for _, test := range []struct {
		proxy *v1alpha1.ProxySpec
		want  time.Duration
	}{
		{nil, 7 * time.Second},
		{&v1alpha1.ProxySpec{}, 7 * time.Second},
		{&v1alpha1.ProxySpec{ConvergenceSeconds: ptr.To[int32](1)}, time.Second},
		{&v1alpha1.ProxySpec{ConvergenceSeconds: ptr.To[int32](600)}, 10 * time.Minute},
	} {
		elastiService := cartElastiService()
		elastiService.Spec.Proxy = test.proxy
		if got := c.convergenceTime(elastiService); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

func TestServiceFoundCondition(t *testing.T) {
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
			got := computeServiceFoundCondition("cart", service)
			if got.status != metav1.ConditionTrue || got.reason != test.reason || !strings.Contains(got.message, test.says) {
				t.Errorf("got %+v", got)
			}
		})
	}
	if got := computeServiceFoundCondition("cart", nil); got.status != metav1.ConditionFalse || got.reason != v1alpha1.ReasonNotFound {
		t.Errorf("got %+v", got)
	}
}

// A Service for media streams has thousands of UDP ports. A status whose conditions the
// API rejects would never be written.
func TestMessagesOfConditionsAreBounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	service := cartService()
	// As many bytes as thousands of ports have, with which the fake API server takes long.
	for port := range int32(300) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("rtp-%d-ü%s", port, strings.Repeat("a", 150)), Port: 10000 + port, Protocol: corev1.ProtocolUDP})
	}
	c.create(service)
	c.create(cartElastiService())
	c.start()
	c.eventuallyCondition("cart", v1alpha1.ConditionServiceFound, metav1.ConditionTrue, v1alpha1.ReasonPortsNotProxied)
	if errs := metav1validation.ValidateConditions(c.elastiService("cart").Status.Conditions, field.NewPath("conditions")); len(errs) > 0 {
		t.Errorf("the API rejects the status: %.300v", errs)
	}
	// Findings contain the names of objects.
	found := &pass{elastiService: cartElastiService()}
	found.target.Pending = true
	found.autoscaler.Autoscaler = &target.Autoscaler{Findings: []compatibility.Finding{
		{Condition: v1alpha1.ConditionAutoscalerCompatible, Reason: v1alpha1.ReasonAutoscalerScalesToZero, Message: strings.Repeat("a", 2*maxMessageBytes)},
	}}
	status := &v1alpha1.ElastiServiceStatus{}
	setCompatibility(found, status, metav1.Now())
	if len(status.Conditions) != 1 || len(status.Conditions[0].Message) > maxMessageBytes {
		t.Errorf("got %d conditions, the first is %.300v", len(status.Conditions), status.Conditions)
	}
	for offset := range 4 {
		if message := bounded(strings.Repeat("a", offset) + strings.Repeat("ü…", maxMessageBytes)); !utf8.ValidString(message) || len(message) > maxMessageBytes {
			t.Errorf("%d bytes, ending in %q", len(message), message[len(message)-8:])
		}
	}
}

func TestTargetFoundCondition(t *testing.T) {
	ref := cartElastiService().Spec.ScaleTargetRef
	known := &metav1.Condition{Type: v1alpha1.ConditionTargetFound, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonFound, Message: "as before"}
	resource := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for _, test := range []struct {
		name        string
		observation target.Observation
		before      *metav1.Condition
		status      metav1.ConditionStatus
		reason      string
	}{
		{"found", target.Observation{Object: &target.Object{}, Scale: &target.Scale{}}, nil, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"not known yet", target.Observation{Pending: true}, nil, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"not known for now", target.Observation{Pending: true}, known, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"server does not respond", target.FailedObservation(fmt.Errorf("timeout")), known, metav1.ConditionTrue, v1alpha1.ReasonFound},
		{"not there", target.Observation{Problem: apierrors.NewNotFound(resource, "cart")}, known, metav1.ConditionFalse, v1alpha1.ReasonNotFound},
		{"forbidden", target.FailedObservation(apierrors.NewForbidden(resource, "cart", nil)), known, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"kind missing", target.FailedObservation(&scaling.KindError{Problem: scaling.KindNotServed}), known, metav1.ConditionFalse, v1alpha1.ReasonKindNotServed},
		{"kind without scale", target.FailedObservation(&scaling.KindError{Problem: scaling.KindNotScalable}), known, metav1.ConditionFalse, v1alpha1.ReasonKindNotScalable},
		{"kind malformed", target.FailedObservation(&scaling.KindError{Problem: scaling.KindInvalid}), known, metav1.ConditionFalse, v1alpha1.ReasonKindInvalid},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := computeTargetFoundCondition(ref, test.observation, test.before)
			if got.status != test.status || got.reason != test.reason || got.message == "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestReadyConditionReportsTheFirstProblem(t *testing.T) {
	service := cartService()
	service.Spec.Ports = service.Spec.Ports[:2]
	found, resolver, free := conditionTrue(v1alpha1.ReasonFound, "found"), conditionTrue(v1alpha1.ReasonResolverReady, "ready"), conditionFalse(v1alpha1.ReasonNoConflict, "free")
	starting, stuck := conditionFalse(v1alpha1.ReasonStarting, "x"), conditionFalse(v1alpha1.ReasonUnschedulable, "x")
	for _, test := range []struct {
		name                                string
		service, target, resolver, conflict condition
		availability                        *condition
		problems                            []condition
		status                              metav1.ConditionStatus
		reason                              string
	}{
		{"all well", found, found, resolver, free, &starting, nil, metav1.ConditionTrue, v1alpha1.ReasonReady},
		{"conflict", conditionFalse(v1alpha1.ReasonNotFound, "x"), found, resolver, conditionTrue(v1alpha1.ReasonServiceTaken, "x"), nil, nil, metav1.ConditionFalse, v1alpha1.ReasonServiceTaken},
		{"no Service", conditionFalse(v1alpha1.ReasonNotFound, "x"), conditionFalse(v1alpha1.ReasonNotFound, "x"), resolver, free, nil, nil, metav1.ConditionFalse, "ServiceNotFound"},
		{"Service not supported", conditionTrue(v1alpha1.ReasonServiceNotSupported, "x"), found, resolver, free, nil, nil, metav1.ConditionFalse, v1alpha1.ReasonServiceNotSupported},
		{"no proxy port", found, found, resolver, free, nil, []condition{conditionFalse(v1alpha1.ReasonProxyPortsExhausted, "x")}, metav1.ConditionFalse, v1alpha1.ReasonProxyPortsExhausted},
		{"no target", found, conditionFalse(v1alpha1.ReasonNotFound, "x"), resolver, free, nil, nil, metav1.ConditionFalse, "TargetNotFound"},
		{"target unknown", found, conditionUnknown(v1alpha1.ReasonTargetUnknown, "x"), resolver, free, nil, nil, metav1.ConditionUnknown, v1alpha1.ReasonTargetUnknown},
		{"no resolver", found, found, conditionFalse(v1alpha1.ReasonNoReadyResolver, "x"), free, nil, nil, metav1.ConditionFalse, v1alpha1.ReasonNoReadyResolver},
		{"target does not start", found, found, resolver, free, &stuck, nil, metav1.ConditionFalse, v1alpha1.ReasonUnschedulable},
		{"no resolver either", found, found, conditionFalse(v1alpha1.ReasonNoReadyResolver, "x"), free, &stuck, nil, metav1.ConditionFalse, v1alpha1.ReasonNoReadyResolver},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := computeReadyCondition(readyFacts{test.service, test.target, test.resolver, test.conflict, test.availability, service, test.problems})
			if got.status != test.status || got.reason != test.reason {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestResolverAvailableConditionWaitsForTheGracePeriod(t *testing.T) {
	ready := &metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolverReady, Message: "as before"}
	if got := computeResolverAvailableCondition(resolvers.Missing, time.Now(), ready); got.status != metav1.ConditionTrue || got.message != "as before" {
		t.Errorf("missing for a moment: %+v", got)
	}
	if got := computeResolverAvailableCondition(resolvers.Missing, time.Now(), nil); got.status != metav1.ConditionUnknown {
		t.Errorf("missing from the start: %+v", got)
	}
	if got := computeResolverAvailableCondition(resolvers.Unavailable, time.Now(), ready); got.status != metav1.ConditionFalse {
		t.Errorf("unavailable: %+v", got)
	}
}

func TestTheOldestElastiServiceOwnsTheService(t *testing.T) {
	at := func(name string, seconds int64) *v1alpha1.ElastiService {
		return &v1alpha1.ElastiService{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(seconds, 0)}}
	}
	if got := owningElastiService([]*v1alpha1.ElastiService{at("a", 3), at("b", 1), at("c", 2)}); got.Name != "b" {
		t.Errorf("got %s", got.Name)
	}
	if got := owningElastiService([]*v1alpha1.ElastiService{at("b", 1), at("a", 1)}); got.Name != "a" {
		t.Errorf("of the same age: got %s", got.Name)
	}
	if got := owningElastiService(nil); got != nil {
		t.Errorf("got %s", got.Name)
	}
}
