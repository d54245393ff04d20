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
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// condition is what was computed of one condition.
type condition struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

// maxMessageBytes bounds the message of a condition. What it names may be as much as an
// object holds, such as thousands of ports, and the API takes 32 KiB.
const maxMessageBytes = 2 << 10

// bounded returns a message that is not too long for a condition.
func bounded(message string) string {
	if len(message) <= maxMessageBytes {
		return message
	}
	const more = "…"
	end := maxMessageBytes - len(more)
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + more
}

func conditionTrue(reason, message string, args ...any) condition {
	return condition{metav1.ConditionTrue, reason, fmt.Sprintf(message, args...)}
}

func conditionFalse(reason, message string, args ...any) condition {
	return condition{metav1.ConditionFalse, reason, fmt.Sprintf(message, args...)}
}

func conditionUnknown(reason, message string, args ...any) condition {
	return condition{metav1.ConditionUnknown, reason, fmt.Sprintf(message, args...)}
}

// computeServiceFoundCondition computes ServiceFound.
func computeServiceFoundCondition(name string, service *corev1.Service) condition {
	if service == nil {
		return conditionFalse(v1alpha1.ReasonNotFound, "Service %q does not exist: create it or correct spec.service", name)
	}
	if problem := resources.Unsupported(service); problem != "" {
		return conditionTrue(v1alpha1.ReasonServiceNotSupported, "Service %q exists, but %s", name, problem)
	}
	var others []string
	for _, port := range service.Spec.Ports {
		if !resources.IsTCP(&port) {
			others = append(others, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
		}
	}
	if len(others) > 0 {
		return conditionTrue(v1alpha1.ReasonPortsNotProxied, "Service %q exists; its ports %s are left alone: only TCP traffic wakes the target", name, strings.Join(others, ", "))
	}
	return conditionTrue(v1alpha1.ReasonFound, "Service %q exists", name)
}

// computeTargetFoundCondition computes TargetFound. While the target is not known, the
// condition stays as it is.
func computeTargetFoundCondition(ref v1alpha1.ScaleTargetRef, observation target.Observation, before *metav1.Condition) condition {
	var kindError *scaling.KindError
	switch err := observation.Problem; {
	case observation.Pending && before != nil:
		return condition{before.Status, before.Reason, before.Message}
	case observation.Pending:
		return conditionUnknown(v1alpha1.ReasonTargetUnknown, "%s %q has not been observed yet", ref.Kind, ref.Name)
	case err == nil:
		return conditionTrue(v1alpha1.ReasonFound, "%s %q exists and can be scaled", ref.Kind, ref.Name)
	case errors.As(err, &kindError):
		reasons := map[scaling.KindProblem]string{
			scaling.KindNotServed:   v1alpha1.ReasonKindNotServed,
			scaling.KindNotScalable: v1alpha1.ReasonKindNotScalable,
			scaling.KindInvalid:     v1alpha1.ReasonKindInvalid,
		}
		return conditionFalse(reasons[kindError.Problem], "%s", kindError.Error())
	case apierrors.IsNotFound(err):
		return conditionFalse(v1alpha1.ReasonNotFound, "%s %q does not exist: create it or correct spec.scaleTargetRef", ref.Kind, ref.Name)
	default:
		return conditionUnknown(v1alpha1.ReasonTargetUnknown, "%s %q cannot be read: %v", ref.Kind, ref.Name, err)
	}
}

// computeResolverAvailableCondition computes ResolverAvailable. While resolvers are missing for
// less than the grace period, the condition stays as it is: a restart of
// theirs is not worth a write for every ElastiService.
func computeResolverAvailableCondition(state resolvers.Availability, since time.Time, before *metav1.Condition) condition {
	switch {
	case state == resolvers.Available:
		return conditionTrue(v1alpha1.ReasonResolverReady, "a resolver is ready to hold traffic")
	case state == resolvers.Unavailable:
		return conditionFalse(v1alpha1.ReasonNoReadyResolver, "no resolver has been ready since %s, so no target is put to sleep, and those that sleep are woken in turn: check the pods of the resolver", since.UTC().Format(time.RFC3339))
	case before != nil:
		return condition{before.Status, before.Reason, before.Message}
	default:
		return conditionUnknown(v1alpha1.ReasonNoReadyResolver, "no resolver is ready yet")
	}
}

// computeFamiliesAvailableCondition computes ResolverAvailable while there is a ready
// resolver: the Service may have IP families of which none has an address, missing.
func computeFamiliesAvailableCondition(state resolvers.Availability, service, missing string, before *metav1.Condition) condition {
	switch {
	case state == resolvers.Available:
		return conditionTrue(v1alpha1.ReasonResolverReady, "a resolver is ready to hold traffic")
	case state == resolvers.Unavailable:
		return conditionFalse(v1alpha1.ReasonNoResolverOfIPFamily, "no resolver has an address of %s, which Service %q has, so the target is not put to sleep, and is woken in turn if it sleeps: have the Service of the resolvers be dual-stack (spec.ipFamilyPolicy: PreferDualStack), or take %s out of spec.ipFamilies of Service %q", missing, service, missing, service)
	case before != nil:
		return condition{before.Status, before.Reason, before.Message}
	default:
		return conditionUnknown(v1alpha1.ReasonNoResolverOfIPFamily, "no resolver with an address of %s is ready yet", missing)
	}
}

// computeConflictCondition computes Conflict.
func computeConflictCondition(service string, owningElastiService *v1alpha1.ElastiService) condition {
	if owningElastiService == nil {
		return conditionFalse(v1alpha1.ReasonNoConflict, "no other ElastiService names Service %q", service)
	}
	return conditionTrue(v1alpha1.ReasonServiceTaken, "ElastiService %q is older and names Service %q too: delete one of the two", owningElastiService.Name, service)
}

// readyFacts are what Ready follows from.
type readyFacts struct {
	service, target, resolver, conflict condition
	// availability is nil while there is no target.
	availability *condition
	// observed is the public Service, or nil.
	observed *corev1.Service
	// problems are those of the objects that had to be written.
	problems []condition
}

// computeReadyCondition computes Ready: the first problem is the one that is reported.
func computeReadyCondition(facts readyFacts) condition {
	service, target, resolver, conflict := facts.service, facts.target, facts.resolver, facts.conflict
	// A target that is left asleep is worse than why it is not managed any more.
	notRestored := slices.IndexFunc(facts.problems, func(problem condition) bool { return problem.reason == v1alpha1.ReasonTargetNotRestored })
	switch {
	case notRestored >= 0:
		return facts.problems[notRestored]
	case conflict.status == metav1.ConditionTrue:
		return conditionFalse(conflict.reason, "%s", conflict.message)
	case service.status != metav1.ConditionTrue:
		return conditionFalse(v1alpha1.ReasonServiceNotFound, "%s", service.message)
	case service.reason == v1alpha1.ReasonServiceNotSupported:
		return conditionFalse(service.reason, "%s", service.message)
	case len(facts.problems) > 0:
		return facts.problems[0]
	case target.status != metav1.ConditionTrue:
		reason := target.reason
		if reason == v1alpha1.ReasonNotFound {
			reason = v1alpha1.ReasonTargetNotFound
		}
		return condition{target.status, reason, target.message}
	case resolver.status != metav1.ConditionTrue:
		return condition{resolver.status, resolver.reason, resolver.message}
	case facts.availability != nil && v1alpha1.IsTargetProblem(facts.availability.reason):
		return *facts.availability
	default:
		return conditionTrue(v1alpha1.ReasonReady, "resolvers can be put in the path of Service %q", facts.observed.Name)
	}
}

// computeAutoscalerFoundCondition computes AutoscalerFound. It is nil without an autoscaler.
func computeAutoscalerFoundCondition(spec *v1alpha1.AutoscalerSpec, ref v1alpha1.ScaleTargetRef, observation target.AutoscalerObservation, before *metav1.Condition) *condition {
	if spec == nil {
		return nil
	}
	var computed condition
	kind := target.AutoscalerKind(spec.Type)
	switch err := observation.Problem; {
	case observation.Pending && before != nil:
		computed = condition{before.Status, before.Reason, before.Message}
	case observation.Pending:
		computed = conditionUnknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q has not been observed yet", kind, spec.Name)
	case err == nil && !observation.Autoscaler.Scales(ref):
		computed = conditionFalse(v1alpha1.ReasonOtherTarget, "%s %q scales %s %q, not the target: correct spec.autoscaler", kind, spec.Name, observation.Autoscaler.TargetKind, observation.Autoscaler.TargetName)
	case err == nil:
		computed = conditionTrue(v1alpha1.ReasonFound, "%s %q exists and scales the target", kind, spec.Name)
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		computed = conditionFalse(v1alpha1.ReasonKindNotServed, "the cluster serves no %s: install it or remove spec.autoscaler; the target sleeps and wakes without it", kind)
	case apierrors.IsNotFound(err):
		computed = conditionFalse(v1alpha1.ReasonNotFound, "%s %q does not exist: create it or correct spec.autoscaler; the target sleeps and wakes without it", kind, spec.Name)
	default:
		computed = conditionUnknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q cannot be read: %v", kind, spec.Name, err)
	}
	return &computed
}
