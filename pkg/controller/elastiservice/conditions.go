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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// verdict is the outcome of one decision, as a condition reports it.
type verdict struct {
	status  metav1.ConditionStatus
	reason  string
	message string
}

func yes(reason, message string, args ...any) verdict {
	return verdict{metav1.ConditionTrue, reason, fmt.Sprintf(message, args...)}
}

func no(reason, message string, args ...any) verdict {
	return verdict{metav1.ConditionFalse, reason, fmt.Sprintf(message, args...)}
}

func unknown(reason, message string, args ...any) verdict {
	return verdict{metav1.ConditionUnknown, reason, fmt.Sprintf(message, args...)}
}

// judgeService decides ServiceFound.
func judgeService(name string, service *corev1.Service) verdict {
	if service == nil {
		return no(v1alpha1.ReasonNotFound, "Service %q does not exist: create it or correct spec.service", name)
	}
	if problem := resources.Unsupported(service); problem != "" {
		return yes(v1alpha1.ReasonServiceNotSupported, "Service %q exists, but %s", name, problem)
	}
	var others []string
	for _, port := range service.Spec.Ports {
		if !resources.IsTCP(&port) {
			others = append(others, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
		}
	}
	if len(others) > 0 {
		return yes(v1alpha1.ReasonPortsNotProxied, "Service %q exists; its ports %s are left alone: only TCP traffic wakes the target", name, strings.Join(others, ", "))
	}
	return yes(v1alpha1.ReasonFound, "Service %q exists", name)
}

// judgeTarget decides TargetFound. While the target is not known, the
// condition stays as it is.
func judgeTarget(ref v1alpha1.ScaleTargetRef, observation target.Observation, before *metav1.Condition) verdict {
	var kindError *scaling.KindError
	switch err := observation.Problem; {
	case observation.Pending && before != nil:
		return verdict{before.Status, before.Reason, before.Message}
	case observation.Pending:
		return unknown(v1alpha1.ReasonTargetUnknown, "%s %q has not been looked up yet", ref.Kind, ref.Name)
	case err == nil:
		return yes(v1alpha1.ReasonFound, "%s %q exists and can be scaled", ref.Kind, ref.Name)
	case errors.As(err, &kindError):
		reasons := map[scaling.KindProblem]string{
			scaling.KindNotServed:   v1alpha1.ReasonKindNotServed,
			scaling.KindNotScalable: v1alpha1.ReasonKindNotScalable,
			scaling.KindInvalid:     v1alpha1.ReasonKindInvalid,
		}
		return no(reasons[kindError.Problem], "%s", kindError.Error())
	case apierrors.IsNotFound(err):
		return no(v1alpha1.ReasonNotFound, "%s %q does not exist: create it or correct spec.scaleTargetRef", ref.Kind, ref.Name)
	default:
		return unknown(v1alpha1.ReasonTargetUnknown, "%s %q cannot be read: %v", ref.Kind, ref.Name, err)
	}
}

// judgeResolvers decides ResolverAvailable. While resolvers are missing for
// less than the grace period, the condition stays as it is: a restart of
// theirs is not worth a write for every ElastiService.
func judgeResolvers(state resolvers.Availability, since time.Time, before *metav1.Condition) verdict {
	switch {
	case state == resolvers.Available:
		return yes(v1alpha1.ReasonResolverReady, "a resolver is ready to hold traffic")
	case state == resolvers.Unavailable:
		return no(v1alpha1.ReasonNoReadyResolver, "no resolver has been ready since %s, so targets are kept awake: look at the pods of the resolver", since.UTC().Format(time.RFC3339))
	case before != nil:
		return verdict{before.Status, before.Reason, before.Message}
	default:
		return unknown(v1alpha1.ReasonNoReadyResolver, "no resolver is ready yet")
	}
}

// judgeConflict decides Conflict.
func judgeConflict(service string, winner *v1alpha1.ElastiService) verdict {
	if winner == nil {
		return no(v1alpha1.ReasonNoConflict, "no other ElastiService names Service %q", service)
	}
	return yes(v1alpha1.ReasonServiceTaken, "ElastiService %q is older and names Service %q too: delete one of the two", winner.Name, service)
}

// judgeReady decides Ready: the first problem is the one that is reported.
// problems are those of the objects that had to be written.
func judgeReady(service, target, resolver, conflict verdict, observed *corev1.Service, problems []verdict) verdict {
	switch {
	case conflict.status == metav1.ConditionTrue:
		return no(conflict.reason, "%s", conflict.message)
	case service.status != metav1.ConditionTrue:
		return no(v1alpha1.ReasonServiceNotFound, "%s", service.message)
	case service.reason == v1alpha1.ReasonServiceNotSupported:
		return no(service.reason, "%s", service.message)
	case len(problems) > 0:
		return problems[0]
	case target.status != metav1.ConditionTrue:
		reason := target.reason
		if reason == v1alpha1.ReasonNotFound {
			reason = v1alpha1.ReasonTargetNotFound
		}
		return verdict{target.status, reason, target.message}
	case resolver.status != metav1.ConditionTrue:
		return verdict{resolver.status, resolver.reason, resolver.message}
	default:
		return yes(v1alpha1.ReasonReady, "Service %q is covered", observed.Name)
	}
}

// judgeAutoscaler decides AutoscalerFound. It is nil without an autoscaler.
func judgeAutoscaler(spec *v1alpha1.AutoscalerSpec, ref v1alpha1.ScaleTargetRef, observation target.AutoscalerObservation, before *metav1.Condition) *verdict {
	if spec == nil {
		return nil
	}
	var judged verdict
	kind := target.AutoscalerKind(spec.Type)
	switch err := observation.Problem; {
	case observation.Pending && before != nil:
		judged = verdict{before.Status, before.Reason, before.Message}
	case observation.Pending:
		judged = unknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q has not been looked up yet", kind, spec.Name)
	case err == nil && !observation.Autoscaler.Scales(ref):
		judged = no(v1alpha1.ReasonOtherTarget, "%s %q scales %s %q, not the target: correct spec.autoscaler", kind, spec.Name, observation.Autoscaler.TargetKind, observation.Autoscaler.TargetName)
	case err == nil:
		judged = yes(v1alpha1.ReasonFound, "%s %q exists and scales the target", kind, spec.Name)
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		judged = no(v1alpha1.ReasonKindNotServed, "the cluster serves no %s: install it or remove spec.autoscaler; the target sleeps and wakes without it", kind)
	case apierrors.IsNotFound(err):
		judged = no(v1alpha1.ReasonNotFound, "%s %q does not exist: create it or correct spec.autoscaler; the target sleeps and wakes without it", kind, spec.Name)
	default:
		judged = unknown(v1alpha1.ReasonAutoscalerUnknown, "%s %q cannot be read: %v", kind, spec.Name, err)
	}
	return &judged
}
