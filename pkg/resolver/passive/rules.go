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

// Package passive matches requests and connections against spec.proxy.passive. A request or
// connection that matches neither wakes a target nor counts as use of it.
//
// It knows no protocol, but what a Request shows of one. Begin with Rules.
package passive

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// healthService is the path of the methods of the health checks of gRPC.
const healthService = "/grpc.health.v1.Health/"

// Request has the properties that rules match.
type Request struct {
	Method string
	// Path is the path as it was sent.
	Path string
	// UserAgents are the values of the User-Agent field, of which there should be
	// one. The first few are checked, and one that matches is enough.
	UserAgents []string
	// Port is that of the public Service.
	Port int32
}

// Rules are the rules of one ElastiService. They are safe for concurrent use; nil is
// the default, with the well-known user agents only. All texts are compared
// literally, so that validation bounds the cost of a match.
type Rules struct {
	withoutWellKnown bool
	userAgents       []string
	paths            map[string]struct{}
	ports            []int32
}

// Compile returns the rules of a spec, which may be nil.
func Compile(spec *v1alpha1.PassiveSpec) *Rules {
	if spec == nil {
		return nil
	}
	rules := &Rules{
		withoutWellKnown: !ptr.Deref(spec.WellKnown, true),
		userAgents:       spec.UserAgents,
		ports:            spec.Ports,
	}
	if len(spec.Paths) > 0 {
		rules.paths = make(map[string]struct{}, len(spec.Paths))
	}
	for _, path := range spec.Paths {
		rules.paths[path] = struct{}{}
	}
	return rules
}

// Port reports whether all traffic on a port of the public Service is passive.
func (r *Rules) Port(number int32) bool { return r != nil && slices.Contains(r.ports, number) }

// Match reports whether a request is passive; wellKnown are the user agents that are
// passive for services without another setting.
func (r *Rules) Match(request Request, wellKnown []string) bool {
	agents := request.UserAgents[:min(len(request.UserAgents), maxAgents)]
	if (r == nil || !r.withoutWellKnown) && onlyReads(&request) && slices.ContainsFunc(agents, func(agent string) bool { return isWellKnown(agent, wellKnown) }) {
		return true
	}
	if r == nil {
		return false
	}
	if _, ok := r.paths[request.Path]; ok || r.Port(request.Port) {
		return true
	}
	return slices.ContainsFunc(agents, func(agent string) bool {
		return slices.ContainsFunc(r.userAgents, func(beginning string) bool { return begins(agent, beginning) })
	})
}

// onlyReads reports whether a request sends no data to the application. A scraper may
// also send scraped data with the same user agent to an application, which has to
// wake for it.
func onlyReads(request *Request) bool {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	case http.MethodPost:
		return strings.HasPrefix(request.Path, healthService)
	}
	return false
}
