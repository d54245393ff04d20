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

package properties

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// scenery creates the history of one application in one namespace.
type scenery struct {
	*history
	revision uint64
}

const scene = "tenant"

// newScenery returns a scenery with a resolver and a sleeping application.
func newScenery() *scenery {
	s := &scenery{history: newHistory()}
	s.write(keyOf(endpointSlice, environment.SystemNamespace, "resolvers"), sliceFacts{service: environment.ResolverName, ready: 1})
	s.write(keyOf(service, scene, "web"), serviceFacts{supported: true, selects: "web"})
	s.write(keyOf(service, scene, resources.PrivateServiceName("web")), serviceFacts{owner: "web", target: "web"})
	s.write(keyOf(deployment, scene, "web"), deploymentFacts{replicas: 0})
	s.addResolvers(1)
	s.advance(newTouched())
	return s
}

func (s *scenery) write(key key, facts any) {
	s.revision++
	s.add(change{key: key, revision: s.revision, now: facts})
}

func (s *scenery) scale(replicas int32) {
	s.write(keyOf(deployment, scene, "web"), deploymentFacts{replicas: replicas})
}

func (s *scenery) addResolvers(resolvers int) {
	s.write(keyOf(endpointSlice, scene, "resolvers-of-web"), sliceFacts{service: "web", resolvers: true, ready: resolvers})
}

func (s *scenery) removeResolvers() { s.write(keyOf(endpointSlice, scene, "resolvers-of-web"), nil) }

func (s *scenery) pods(ready int) {
	s.write(keyOf(endpointSlice, scene, "pods-of-web"), sliceFacts{service: "web", ready: ready})
}

// gapTests are what happens to a target, what a user touched, and the gap that it leaves.
var gapTests = map[string]struct {
	happens func(s *scenery)
	touched []key
	want    string
}{
	"the resolvers leave before the wake": {
		happens: func(s *scenery) { s.removeResolvers(); s.scale(1); s.pods(1) },
		want:    "lost its last endpoint",
	},
	"the slice is emptied before the wake": {
		happens: func(s *scenery) { s.addResolvers(0); s.scale(1) },
		want:    "lost its last endpoint",
	},
	"the wake comes first": {
		happens: func(s *scenery) { s.scale(1); s.pods(1); s.removeResolvers() },
	},
	"the target sleeps before the resolvers are there": {
		happens: func(s *scenery) {
			s.scale(1)
			s.pods(1)
			s.removeResolvers()
			s.scale(0)
			s.addResolvers(1)
			s.pods(0)
		},
		want: "before Service web had resolvers",
	},
	"a user scales the target to zero": {
		happens: func(s *scenery) { s.scale(1); s.pods(1); s.removeResolvers(); s.scale(0); s.pods(0) },
		touched: []key{keyOf(deployment, scene, "web")},
	},
	"the pods leave after the resolvers": {
		happens: func(s *scenery) { s.pods(1); s.removeResolvers(); s.pods(0) },
		want:    "write of EndpointSlice tenant/pods-of-web",
	},
	"the private Service is deleted, and then the target sleeps": {
		happens: func(s *scenery) {
			s.scale(1)
			s.write(keyOf(service, scene, resources.PrivateServiceName("web")), nil)
			s.scale(0)
		},
		want: "no private Service names it",
	},
	"another ElastiService of the target is in reach": {
		happens: func(s *scenery) {
			s.write(keyOf(service, scene, "api"), serviceFacts{supported: true, selects: "web"})
			s.write(keyOf(service, scene, resources.PrivateServiceName("api")), serviceFacts{owner: "api", target: "web"})
			s.write(keyOf(endpointSlice, scene, "resolvers-of-api"), sliceFacts{service: "api", resolvers: true, ready: 1})
			s.removeResolvers()
		},
		want: "lost its last endpoint",
	},
	"no resolver is ready": {
		happens: func(s *scenery) {
			s.write(keyOf(endpointSlice, environment.SystemNamespace, "resolvers"), sliceFacts{service: environment.ResolverName})
			s.addResolvers(0)
		},
	},
	"a tenant deletes the slice": {
		happens: func(s *scenery) { s.removeResolvers(); s.addResolvers(1) },
		touched: []key{keyOf(endpointSlice, scene, "web")},
	},
	"the ElastiService moves to another Service": {
		happens: func(s *scenery) {
			s.write(keyOf(service, scene, "api"), serviceFacts{supported: true, selects: "web"})
			s.write(keyOf(service, scene, resources.PrivateServiceName("api")), serviceFacts{owner: "web", target: "web"})
			s.write(keyOf(endpointSlice, scene, "resolvers-of-api"), sliceFacts{service: "api", resolvers: true, ready: 1})
			s.removeResolvers()
		},
	},
}

func TestHistoryFindsGaps(t *testing.T) {
	for name, test := range gapTests {
		t.Run(name, func(t *testing.T) {
			s := newScenery()
			test.happens(s)
			by := newTouched()
			for _, key := range test.touched {
				by.objects[key] = true
			}
			gaps := strings.Join(s.advance(by), "\n")
			if (gaps == "") != (test.want == "") || !strings.Contains(gaps, test.want) {
				t.Errorf("the gaps are %q, want %q", gaps, test.want)
			}
		})
	}
}

// Concurrent writes may be observed in any order.
func TestHistoryGoesByRevisions(t *testing.T) {
	s := newScenery()
	name := types.NamespacedName{Namespace: scene, Name: "resolvers-of-web"}
	s.add(change{key: key{endpointSlice, name}, revision: s.revision + 2})
	s.add(change{key: keyOf(deployment, scene, "web"), revision: s.revision + 1, now: deploymentFacts{replicas: 1}})
	if gaps := s.advance(newTouched()); len(gaps) > 0 {
		t.Errorf("the gaps are %q, and the target was woken before the resolvers left", gaps)
	}
}
