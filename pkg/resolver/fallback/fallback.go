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

// Package fallback chooses the local replies while no pod of a service is ready: to
// passive requests, which do not wake the target, to requests that a rule of
// spec.probeResponse matches, and to browsers, which get the waiting page.
//
// It knows no protocol: what writes the reply is in the package of each. Begin with
// Policy.
package fallback

import (
	"net/http"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// Policy has the defaults of all services. It is safe for concurrent use.
type Policy struct {
	// PassiveUserAgents are the user agents whose requests are passive unless a
	// service has another setting. Their form is that of passive.WellKnownUserAgents.
	PassiveUserAgents []string
}

// Reply returns the reply to a request for which no pod is ready, or nil when the
// request is to be held.
func (p *Policy) Reply(svc *service.Service, request *proberesponse.Request) *localreply.Reply {
	config := svc.Config()
	if response := config.ProbeResponses.Match(request); response != nil {
		return &localreply.Reply{
			Status:      response.Status,
			Reason:      localreply.ReasonProbeResponse,
			ContentType: response.ContentType,
			Body:        response.Body,
		}
	}
	if p.passive(config, request) {
		return Asleep()
	}
	if config.WaitingPage {
		return waitingPage(svc, request)
	}
	return nil
}

// Asleep returns the reply to a passive request while the target sleeps.
func Asleep() *localreply.Reply {
	return localreply.New(http.StatusServiceUnavailable, localreply.ReasonAsleep,
		"the target sleeps, and by spec.proxy.passive this request does not wake it; spec.probeResponse can set another response")
}

// Passive reports whether a request would not wake the target. Such a request does
// not count as use of the target either.
func (p *Policy) Passive(svc *service.Service, request *proberesponse.Request) bool {
	config := svc.Config()
	return p.passive(config, request) || config.ProbeResponses.Match(request) != nil
}

func (p *Policy) passive(config *service.Config, request *proberesponse.Request) bool {
	return config.Passive.Match(passive.Request{
		Method: request.Method, Path: request.Path, UserAgents: request.Values("User-Agent"), Port: request.Port,
	}, p.PassiveUserAgents)
}

// wakeFor is how long the target is kept awake after a browser got the page or the
// page polled the progress of the wake. The page polls more often.
const wakeFor = 10 * time.Second
