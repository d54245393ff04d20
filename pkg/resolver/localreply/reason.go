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

package localreply

import (
	"net/http"

	"google.golang.org/grpc/codes"
)

// Reason is the reason of a local reply. It is the value of X-Elasti-Answer and the
// reason in the access log.
type Reason string

const (
	// ReasonTooManyPending: the service holds as much as proxy.maxPending allows.
	ReasonTooManyPending Reason = "TooManyPending"
	// ReasonTooManyBytes: the resolver, or the service, holds as many bytes as it
	// may.
	ReasonTooManyBytes Reason = "TooManyBytes"
	// ReasonTooManyConnections: the service has reached its limit on connections.
	ReasonTooManyConnections Reason = "TooManyConnections"
	// ReasonHoldTimeout: no pod was ready within proxy.holdTimeoutSeconds.
	ReasonHoldTimeout Reason = "HoldTimeout"
	// ReasonServiceGone: the service is no longer managed.
	ReasonServiceGone Reason = "ServiceGone"
	// ReasonResolverExhausted: the resolver has no file descriptors or local ports
	// left.
	ReasonResolverExhausted Reason = "ResolverExhausted"
	// ReasonPodLost: the connection to the pod broke before the response.
	ReasonPodLost Reason = "PodLost"
	// ReasonBadResponse: the pod did not send a valid response.
	ReasonBadResponse Reason = "BadResponse"
	// ReasonBadRequest: the request is invalid or ambiguous.
	ReasonBadRequest Reason = "BadRequest"
	// ReasonAsleep: the target sleeps and the request does not wake it.
	ReasonAsleep Reason = "Asleep"
	// ReasonProbeResponse: a rule of spec.probeResponse matched.
	ReasonProbeResponse Reason = "ProbeResponse"
	// ReasonWaitingPage: a browser is shown the progress of the wake.
	ReasonWaitingPage Reason = "WaitingPage"
	// ReasonUnknownHost: no service on the shared port has the requested host.
	ReasonUnknownHost Reason = "UnknownHost"
	// ReasonAddressNotAllowed: spec.proxy.allowedClients does not include the address
	// of the client.
	ReasonAddressNotAllowed Reason = "AddressNotAllowed"
	// ReasonServing: the target is awake, and resolvers are not in the path of its
	// Service.
	ReasonServing Reason = "Serving"
	// ReasonKnownHost: a service on the shared port has the requested host. It is the
	// reply to the port check of the controller.
	ReasonKnownHost Reason = "KnownHost"
)

// HeldOutcome is how a request or connection stopped being held, or was rejected
// instead. It is a label of metrics.
type HeldOutcome string

const (
	// HeldReleased: it got a pod.
	HeldReleased HeldOutcome = "released"
	// HeldTimeout: no pod was ready in time.
	HeldTimeout HeldOutcome = "timeout"
	// HeldTooManyPending: the limit of held requests was exceeded.
	HeldTooManyPending HeldOutcome = "too_many_pending"
	// HeldTooManyBytes: a limit of memory was exceeded.
	HeldTooManyBytes HeldOutcome = "too_many_bytes"
	// HeldResolverExhausted: the resolver has no file descriptors or local ports left.
	HeldResolverExhausted HeldOutcome = "resolver_exhausted"
	// HeldClientGone: the client closed its connection.
	HeldClientGone HeldOutcome = "client_gone"
	// HeldServiceGone: the ElastiService was deleted.
	HeldServiceGone HeldOutcome = "service_gone"
)

// HeldOutcomes returns every HeldOutcome.
func HeldOutcomes() []HeldOutcome {
	return []HeldOutcome{HeldReleased, HeldTimeout, HeldTooManyPending, HeldTooManyBytes, HeldResolverExhausted, HeldClientGone, HeldServiceGone}
}

// class has the properties of a reason.
type class struct {
	// status is the HTTP status of replies by ForError.
	status int
	// grpc is the gRPC status.
	grpc codes.Code
	// held is the outcome of a held request.
	held HeldOutcome
	// verbosity is the verbosity at which a reply is logged.
	verbosity int
}

// The verbosities of log lines about replies. Replies caused by a client or by a
// limit of the user may occur for each request.
const (
	verbosityPerRequest = 5
	verbosityOfFaults   = 2
)

// class returns the properties of a reason.
func (r Reason) class() class {
	switch r {
	case ReasonTooManyPending:
		return class{http.StatusServiceUnavailable, codes.ResourceExhausted, HeldTooManyPending, verbosityPerRequest}
	case ReasonTooManyBytes:
		return class{http.StatusServiceUnavailable, codes.ResourceExhausted, HeldTooManyBytes, verbosityPerRequest}
	case ReasonTooManyConnections:
		return class{http.StatusServiceUnavailable, codes.ResourceExhausted, HeldServiceGone, verbosityPerRequest}
	case ReasonHoldTimeout:
		return class{http.StatusGatewayTimeout, codes.Unavailable, HeldTimeout, verbosityOfFaults}
	case ReasonResolverExhausted:
		return class{http.StatusServiceUnavailable, codes.Unavailable, HeldResolverExhausted, verbosityOfFaults}
	case ReasonPodLost, ReasonBadResponse:
		return class{http.StatusBadGateway, codes.Unavailable, HeldServiceGone, verbosityOfFaults}
	case ReasonBadRequest:
		return class{http.StatusBadRequest, codes.InvalidArgument, HeldServiceGone, verbosityPerRequest}
	case ReasonAddressNotAllowed:
		return class{http.StatusForbidden, codes.PermissionDenied, HeldServiceGone, verbosityPerRequest}
	case ReasonUnknownHost, ReasonServing:
		return class{http.StatusMisdirectedRequest, codes.Unavailable, HeldServiceGone, verbosityPerRequest}
	case ReasonServiceGone:
		return class{http.StatusServiceUnavailable, codes.Unavailable, HeldServiceGone, verbosityPerRequest}
	default:
		return class{http.StatusServiceUnavailable, codes.Unavailable, HeldServiceGone, verbosityPerRequest}
	}
}

// HeldOutcome returns the outcome of a held request that got a reply for this
// reason.
func (r Reason) HeldOutcome() HeldOutcome { return r.class().held }

// Verbosity returns the verbosity of log lines about replies for this reason.
func (r Reason) Verbosity() int { return r.class().verbosity }
