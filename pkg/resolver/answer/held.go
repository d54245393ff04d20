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

package answer

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// NotHeld returns the answer to a request of a service that was not given a
// pod, for an error of its queue. It names the limit and where it is set.
func NotHeld(svc *service.Service, err error) *Answer {
	name := svc.Namespace + "/" + svc.PublicService
	switch {
	case errors.Is(err, hold.ErrTimeout):
		return New(http.StatusGatewayTimeout, ReasonHoldTimeout, fmt.Sprintf(
			"no pod of service %s could answer within %s (proxy.holdTimeoutSeconds); see the conditions of elastiservice %s and the pods of its target",
			name, svc.Config().HoldTimeout, svc.Name))
	case errors.Is(err, hold.ErrTooManyPending):
		return New(http.StatusServiceUnavailable, ReasonTooManyPending, fmt.Sprintf(
			"%d requests are already held for service %s, as many as its proxy.maxPending allows",
			svc.Config().Limits.MaxPending, name))
	case errors.Is(err, hold.ErrTooManyBytes):
		return New(http.StatusServiceUnavailable, ReasonTooManyBytes,
			"the resolver already holds as many bytes as its --max-held-bytes allows")
	default:
		return New(http.StatusServiceUnavailable, ReasonServiceGone, fmt.Sprintf(
			"service %s is no longer managed by an elastiservice; ask again", name))
	}
}
