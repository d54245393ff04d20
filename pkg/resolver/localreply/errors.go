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
	"errors"
	"fmt"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// ErrTooManyConnections means that a service has reached its limit on connections of
// clients.
var ErrTooManyConnections = errors.New("as many connections of clients are open as the service may have")

// ForError returns the reply to a request that got no pod, for an error of the
// queue of its service, of the memory or of Lease.Dial, or for ErrTooManyConnections.
// The message names the limit and where it is set.
func ForError(svc *service.Service, err error) *Reply {
	reason, message := classify(svc, err)
	return New(reason.class().status, reason, message)
}

// classify returns the reason and the message of the reply for an error.
func classify(svc *service.Service, err error) (Reason, string) {
	name := svc.PublicServiceKey()
	if fault := localfault.Of(err); fault != nil {
		return ReasonResolverExhausted, fmt.Sprintf(
			"%v; this does not concern service %s; retry, and see --max-connections of the resolver", fault, name)
	}
	switch {
	case errors.Is(err, hold.ErrTimeout):
		config := svc.Config()
		problem := ""
		if config.Problem != "" {
			problem = ": " + config.Problem
		}
		return ReasonHoldTimeout, fmt.Sprintf(
			"no pod of service %s was ready within %s (proxy.holdTimeoutSeconds)%s; see the conditions of elastiservice %s and the pods of its target",
			name, config.HoldTimeout, problem, svc.Name)
	case errors.Is(err, hold.ErrTooManyPending):
		return ReasonTooManyPending, fmt.Sprintf(
			"%d requests are already held for service %s, as many as its proxy.maxPending allows",
			svc.Config().Limits.MaxPending, name)
	case errors.Is(err, memory.ErrProcessLimit), errors.Is(err, memory.ErrServiceLimit), errors.Is(err, memory.ErrShed):
		return ReasonTooManyBytes, err.Error()
	case errors.Is(err, hold.ErrAsleep):
		return ReasonAsleep, err.Error() + "; spec.probeResponse can set another response"
	case errors.Is(err, ErrTooManyConnections):
		return ReasonTooManyConnections, fmt.Sprintf(
			"as many connections are open to service %s as it may have; retry, and see --max-connections and --max-connections-per-service of the resolver", name)
	default:
		return ReasonServiceGone, fmt.Sprintf("service %s is no longer managed by an elastiservice; retry", name)
	}
}
