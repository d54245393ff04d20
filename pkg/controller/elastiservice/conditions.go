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
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// Types of the conditions that this controller sets.
const (
	// ConditionReady is true when the ElastiService does what it is for.
	ConditionReady = "Ready"
	// ConditionServiceFound is true when the public Service exists.
	ConditionServiceFound = "ServiceFound"
	// ConditionTargetFound is true when the target exists and can be scaled.
	ConditionTargetFound = "TargetFound"
	// ConditionResolverAvailable is true when a resolver is ready.
	ConditionResolverAvailable = "ResolverAvailable"
	// ConditionConflict is true when another ElastiService has the public Service.
	ConditionConflict = "Conflict"
)

// Reasons of the conditions, and of the Events about them.
const (
	// ReasonFound: the object exists.
	ReasonFound = "Found"
	// ReasonNotFound: the object does not exist.
	ReasonNotFound = "NotFound"
	// ReasonPortsNotProxied: the Service has ports that are not TCP. Resolvers
	// cannot hold their traffic.
	ReasonPortsNotProxied = "PortsNotProxied"
	// ReasonServiceNotSupported: resolvers cannot be in the path of this
	// Service: it is headless, an ExternalName, without selector or without
	// TCP port.
	ReasonServiceNotSupported = "ServiceNotSupported"
	// ReasonKindNotServed: the cluster does not know the kind of the target.
	ReasonKindNotServed = "KindNotServed"
	// ReasonKindNotScalable: the kind of the target has no scale subresource.
	ReasonKindNotScalable = "KindNotScalable"
	// ReasonKindInvalid: apiVersion or kind of the target is malformed.
	ReasonKindInvalid = "KindInvalid"
	// ReasonTargetUnknown: the target cannot be read.
	ReasonTargetUnknown = "TargetUnknown"
	// ReasonResolverReady: there is a ready resolver.
	ReasonResolverReady = "ResolverReady"
	// ReasonNoReadyResolver: there has been no ready resolver for the grace period.
	ReasonNoReadyResolver = "NoReadyResolver"
	// ReasonServiceTaken: an older ElastiService names the same Service.
	ReasonServiceTaken = "ServiceTaken"
	// ReasonNoConflict: no other ElastiService names the Service.
	ReasonNoConflict = "NoConflict"
	// ReasonProxyPortsExhausted: there is no free proxy port.
	ReasonProxyPortsExhausted = "ProxyPortsExhausted"
	// ReasonNameTaken: an object that is not ours has the name of one that is needed.
	ReasonNameTaken = "NameTaken"
	// ReasonWriteFailed: an object that is needed could not be written.
	ReasonWriteFailed = "WriteFailed"
	// ReasonReady: everything is in place.
	ReasonReady = "Ready"
	// ReasonDeleting: the ElastiService is being deleted and waits for the
	// target to be awake.
	ReasonDeleting = "Deleting"
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
		return no(ReasonNotFound, "Service %q does not exist: create it or correct spec.service", name)
	}
	if problem := unsupported(service); problem != "" {
		return yes(ReasonServiceNotSupported, "Service %q exists, but %s", name, problem)
	}
	var others []string
	for _, port := range service.Spec.Ports {
		if !isTCP(&port) {
			others = append(others, fmt.Sprintf("%d/%s", port.Port, port.Protocol))
		}
	}
	if len(others) > 0 {
		return yes(ReasonPortsNotProxied, "Service %q exists; its ports %s are left alone: only TCP traffic wakes the target", name, strings.Join(others, ", "))
	}
	return yes(ReasonFound, "Service %q exists", name)
}

// unsupported says why resolvers cannot be in the path of a Service, and what
// to do about it. It is empty when they can.
func unsupported(service *corev1.Service) string {
	tcp := false
	for _, port := range service.Spec.Ports {
		tcp = tcp || isTCP(&port)
	}
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return "it is of type ExternalName, whose traffic goes elsewhere: use another type"
	case service.Spec.ClusterIP == corev1.ClusterIPNone:
		return "it is headless, so clients connect to pods without it: give it a cluster IP"
	case len(service.Spec.Selector) == 0:
		return "it has no selector that tells its pods: give it one"
	case !tcp:
		return "it has no TCP port: only TCP traffic wakes the target"
	default:
		return ""
	}
}

func isTCP(port *corev1.ServicePort) bool {
	return port.Protocol == corev1.ProtocolTCP || port.Protocol == ""
}

// judgeTarget decides TargetFound. While the target is not known, the
// condition stays as it is.
func judgeTarget(ref v1alpha1.ScaleTargetRef, observation targetObservation, before *metav1.Condition) verdict {
	var kindError *scaling.KindError
	switch err := observation.problem; {
	case observation.pending && before != nil:
		return verdict{before.Status, before.Reason, before.Message}
	case observation.pending:
		return unknown(ReasonTargetUnknown, "%s %q has not been looked up yet", ref.Kind, ref.Name)
	case err == nil:
		return yes(ReasonFound, "%s %q exists and can be scaled", ref.Kind, ref.Name)
	case errors.As(err, &kindError):
		reasons := map[scaling.KindProblem]string{
			scaling.KindNotServed:   ReasonKindNotServed,
			scaling.KindNotScalable: ReasonKindNotScalable,
			scaling.KindInvalid:     ReasonKindInvalid,
		}
		return no(reasons[kindError.Problem], "%s", kindError.Error())
	case apierrors.IsNotFound(err):
		return no(ReasonNotFound, "%s %q does not exist: create it or correct spec.scaleTargetRef", ref.Kind, ref.Name)
	default:
		return unknown(ReasonTargetUnknown, "%s %q cannot be read: %v", ref.Kind, ref.Name, err)
	}
}

// judgeResolvers decides ResolverAvailable. While resolvers are missing for
// less than the grace period, the condition stays as it is: a restart of
// theirs is not worth a write for every ElastiService.
func judgeResolvers(state availability, since time.Time, before *metav1.Condition) verdict {
	switch {
	case state == resolversReady:
		return yes(ReasonResolverReady, "a resolver is ready to hold traffic")
	case state == resolversGone:
		return no(ReasonNoReadyResolver, "no resolver has been ready since %s, so targets are kept awake: look at the pods of the resolver", since.UTC().Format(time.RFC3339))
	case before != nil:
		return verdict{before.Status, before.Reason, before.Message}
	default:
		return unknown(ReasonNoReadyResolver, "no resolver is ready yet")
	}
}

// judgeConflict decides Conflict.
func judgeConflict(service string, winner *v1alpha1.ElastiService) verdict {
	if winner == nil {
		return no(ReasonNoConflict, "no other ElastiService names Service %q", service)
	}
	return yes(ReasonServiceTaken, "ElastiService %q is older and names Service %q too: delete one of the two", winner.Name, service)
}

// judgeReady decides Ready: the first problem is the one that is reported.
// problems are those of the objects that had to be written.
func judgeReady(service, target, resolver, conflict verdict, observed *corev1.Service, problems []verdict) verdict {
	switch {
	case conflict.status == metav1.ConditionTrue:
		return no(conflict.reason, "%s", conflict.message)
	case service.status != metav1.ConditionTrue:
		return no("Service"+service.reason, "%s", service.message)
	case service.reason == ReasonServiceNotSupported:
		return no(service.reason, "%s", service.message)
	case len(problems) > 0:
		return problems[0]
	case target.status != metav1.ConditionTrue:
		reason := target.reason
		if reason == ReasonNotFound {
			reason = "Target" + reason
		}
		return verdict{target.status, reason, target.message}
	case resolver.status != metav1.ConditionTrue:
		return verdict{resolver.status, resolver.reason, resolver.message}
	default:
		return yes(ReasonReady, "Service %q is covered", observed.Name)
	}
}
