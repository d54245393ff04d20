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

package fallback

import (
	"bytes"
	_ "embed"
	"html"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

const (
	// headerWaiting marks the requests with which the page polls the progress of the wake.
	headerWaiting = "X-Elasti-Waiting"
	// headerProgress has one of the steps below, headerWaited the time in seconds for
	// which the target has been waking.
	headerProgress = "X-Elasti-Progress"
	headerWaited   = "X-Elasti-Waited-Seconds"
	// headerProblem has the reason, percent-encoded, why the target does not start.
	headerProblem = "X-Elasti-Problem"
)

// The steps of a wake, as the page shows them.
const (
	stepWaking   = "waking"
	stepPod      = "pod"
	stepStarting = "starting"
)

// page shows the progress of the wake, which it polls with HEAD requests. It loads
// the application once the response to one of them does not come from a resolver.
//
//go:embed page.html
var page []byte

// problemMark is the place in the page of the reason why the target does not start.
var problemMark = []byte("{{problem}}")

// waitingPage returns the reply to a request of a browser, and nil for other
// requests.
func waitingPage(svc *service.Service, request *proberesponse.Request) *localreply.Reply {
	polls := request.Method == http.MethodHead && len(request.Values(headerWaiting)) > 0
	if !polls && !navigates(request) {
		return nil
	}
	svc.KeepAwake(wakeFor)
	step, waited := progress(svc.Queue())
	problem := svc.Config().Problem
	reply := &localreply.Reply{
		Status:      http.StatusServiceUnavailable,
		Reason:      localreply.ReasonWaitingPage,
		ContentType: "text/html; charset=utf-8",
		Body:        bytes.Replace(page, problemMark, []byte(html.EscapeString(problem)), 1),
		Fields: []localreply.Field{
			{Name: headerProgress, Value: step},
			{Name: headerWaited, Value: strconv.Itoa(int(waited.Seconds()))},
		},
	}
	if problem != "" {
		reply.Fields = append(reply.Fields, localreply.Field{Name: headerProblem, Value: url.PathEscape(problem)})
	}
	return reply
}

// navigates reports whether a request is the navigation of a browser to a page.
func navigates(request *proberesponse.Request) bool {
	if request.Method != http.MethodGet {
		return false
	}
	for _, mode := range request.Values("Sec-Fetch-Mode") {
		if mode != "navigate" {
			return false
		}
	}
	for _, accept := range request.Values("Accept") {
		if strings.Contains(accept, "text/html") {
			return true
		}
	}
	return false
}

func progress(queue *hold.Queue) (step string, waited time.Duration) {
	cold := queue.ColdStart()
	waited = max(0, time.Since(cold.Began))
	switch {
	case queue.Pods() > 0:
		return stepStarting, waited
	case !cold.WakeSucceeded.IsZero():
		return stepPod, waited
	}
	return stepWaking, waited
}
