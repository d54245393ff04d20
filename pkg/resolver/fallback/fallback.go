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

// Package fallback decides what a resolver replies itself while no pod of a
// service can: health checks that must not wake the target, and people who
// would rather see something happen than wait.
package fallback

import (
	"net/http"
	"strings"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// Policy is what counts for all services. It is safe for concurrent use.
type Policy struct {
	// PassiveUserAgents are beginnings of User-Agent values whose requests never
	// wake a target.
	PassiveUserAgents []string
}

// Reply returns the reply to a request that no pod can take, or nil when it is
// to be held.
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
	if p.passive(request) {
		return localreply.New(http.StatusServiceUnavailable, localreply.ReasonAsleep,
			"the target sleeps, and requests of this user agent do not wake it; spec.probeResponse can give them another answer")
	}
	if config.WaitingPage {
		return waitingPage(svc, request)
	}
	return nil
}

// Passive reports whether a request is of a kind that would not wake the
// target: a health check does not mean either that somebody uses it.
func (p *Policy) Passive(svc *service.Service, request *proberesponse.Request) bool {
	return p.passive(request) || svc.Config().ProbeResponses.Match(request) != nil
}

func (p *Policy) passive(request *proberesponse.Request) bool {
	if len(p.PassiveUserAgents) == 0 {
		return false
	}
	for _, agent := range request.Values("User-Agent") {
		for _, prefix := range p.PassiveUserAgents {
			if strings.HasPrefix(agent, prefix) {
				return true
			}
		}
	}
	return false
}

// wakeFor is how long a target is woken for after a page was shown or asked how
// far the wake is. The page asks more often.
const wakeFor = 10 * time.Second
