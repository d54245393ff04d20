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
	"cmp"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// kind is the kind of an object of the cluster that a history is about.
type kind string

const (
	deployment    kind = "Deployment"
	service       kind = "Service"
	endpointSlice kind = "EndpointSlice"
)

type key struct {
	kind kind
	types.NamespacedName
}

func keyOf(of kind, namespace, name string) key {
	return key{of, types.NamespacedName{Namespace: namespace, Name: name}}
}

// change is one write to the store of the cluster. Their revisions put all of them
// in order, whatever they are about.
type change struct {
	key
	revision uint64
	// now is the object after the write, nil when it was deleted.
	now any
}

// deploymentFacts, serviceFacts and sliceFacts have the relevant fields of objects.
type deploymentFacts struct{ replicas int32 }

type serviceFacts struct {
	// supported is true when the Service can have resolvers in its path.
	supported bool
	// selects is the application whose pods it has.
	selects string
	// owner and target are those that a private Service records.
	owner, target string
}

type sliceFacts struct {
	service string
	// resolvers is true of resolver slices.
	resolvers bool
	ready     int
}

// history records writes, and replays them from one quiet period to the next. It is safe
// for concurrent use.
type history struct {
	mu      sync.Mutex
	pending []change
	writes  int

	// The rest belongs to advance.
	objects map[key]any
	// slept and woken count how often a target was scaled to zero and up again.
	slept, woken int
}

func newHistory() *history { return &history{objects: map[key]any{}} }

func (h *history) add(c change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending = append(h.pending, c)
	h.writes++
}

// written counts what was written so far.
func (h *history) written() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.writes
}

// touched has the objects that the test itself changed in a round, which may have made
// targets unreachable.
type touched struct {
	objects    map[key]bool
	namespaces map[string]bool
}

func newTouched() touched {
	return touched{objects: map[key]bool{}, namespaces: map[string]bool{}}
}

// advance replays the writes since the last call, and returns the times at which a target
// at zero became unreachable.
func (h *history) advance(by touched) (gaps []string) {
	h.mu.Lock()
	changes := h.pending
	h.pending = nil
	h.mu.Unlock()
	slices.SortStableFunc(changes, func(one, other change) int { return cmp.Compare(one.revision, other.revision) })
	replay := &replay{history: h, touched: by, withoutResolvers: h.resolvers() == 0}
	for _, c := range changes {
		replay.apply(c)
	}
	return replay.gaps
}

func (h *history) set(c change) {
	if c.now == nil {
		delete(h.objects, c.key)
		return
	}
	h.objects[c.key] = c.now
}

// resolvers counts the ready resolvers.
func (h *history) resolvers() int {
	_, others := h.endpoints(types.NamespacedName{Namespace: environment.SystemNamespace, Name: environment.ResolverName})
	return others
}

// endpoints counts the ready endpoints of a Service: resolvers, and others.
func (h *history) endpoints(of types.NamespacedName) (resolvers, others int) {
	for key, object := range h.objects {
		slice, ok := object.(sliceFacts)
		switch {
		case !ok || key.Namespace != of.Namespace || slice.service != of.Name:
		case slice.resolvers:
			resolvers += slice.ready
		default:
			others += slice.ready
		}
	}
	return resolvers, others
}

// privateService is a private Service, its public Service and its target.
type privateService struct {
	name, owner    string
	public, target types.NamespacedName
	selects        string
}

// privateServices returns the private Services of a namespace whose public Service
// exists and can have resolvers in its path.
func (h *history) privateServices(namespace string) []privateService {
	var found []privateService
	for _, name := range serviceNames {
		public, ok := h.objects[keyOf(service, namespace, name)].(serviceFacts)
		private, made := h.objects[keyOf(service, namespace, resources.PrivateServiceName(name))].(serviceFacts)
		if !ok || !made || !public.supported {
			continue
		}
		found = append(found, privateService{
			name: resources.PrivateServiceName(name), owner: private.owner, selects: public.selects,
			public: types.NamespacedName{Namespace: namespace, Name: name},
			target: types.NamespacedName{Namespace: namespace, Name: private.target},
		})
	}
	return found
}

func (h *history) asleep(target types.NamespacedName) bool {
	facts, ok := h.objects[key{deployment, target}].(deploymentFacts)
	return ok && facts.replicas == 0
}

// replay is one advance.
type replay struct {
	*history
	touched          touched
	withoutResolvers bool
	gaps             []string
}

func (r *replay) apply(c change) {
	before := map[types.NamespacedName]bool{}
	for _, private := range r.privateServices(c.Namespace) {
		resolvers, others := r.endpoints(private.public)
		before[private.public] = resolvers+others > 0
	}
	was := r.objects[c.key]
	r.set(c)
	r.withoutResolvers = r.withoutResolvers || r.resolvers() == 0
	if r.touched.namespaces[c.Namespace] || c.Namespace == environment.SystemNamespace {
		return
	}
	if c.kind == deployment {
		r.scaled(c, was)
	}
	for _, private := range r.privateServices(c.Namespace) {
		if before[private.public] {
			r.expectReach(c, private)
		}
	}
}

// scaled checks a target that is scaled to zero: the server scales only managed targets,
// after resolvers are in the path.
func (r *replay) scaled(c change, was any) {
	before, existed := was.(deploymentFacts)
	after, exists := c.now.(deploymentFacts)
	switch {
	case !existed || !exists || (before.replicas == 0) == (after.replicas == 0):
		return
	case after.replicas > 0:
		r.woken++
		return
	}
	r.slept++
	if r.touched.objects[c.key] {
		return
	}
	managed := false
	for _, private := range r.privateServices(c.Namespace) {
		if private.target != c.NamespacedName {
			continue
		}
		managed = true
		if resolvers, _ := r.endpoints(private.public); resolvers == 0 && !r.excused(private) {
			r.gap(c, "it was scaled to zero before Service %s had resolvers", private.public.Name)
		}
	}
	if !managed && !r.touchedPrivate(c.Namespace) {
		r.gap(c, "it was scaled to zero and no private Service names it")
	}
}

// expectReach records when a change makes a Service unreachable while its target is at
// zero. Pods that another workload has taken over are not a fault of the server.
func (r *replay) expectReach(c change, private privateService) {
	resolvers, others := r.endpoints(private.public)
	if resolvers+others > 0 || !r.asleep(private.target) || r.touched.objects[key{deployment, private.target}] || r.excused(private) || r.moved(private) {
		return
	}
	if slice, ok := c.now.(sliceFacts); ok && !slice.resolvers && private.selects != private.target.Name {
		return
	}
	r.gap(c, "Service %s lost its last endpoint while its target %s was at zero", private.public.Name, private.target.Name)
}

// moved reports whether the ElastiService has another Service now, which is in reach.
func (r *replay) moved(from privateService) bool {
	return slices.ContainsFunc(r.privateServices(from.public.Namespace), func(other privateService) bool {
		resolvers, others := r.endpoints(other.public)
		return other.public != from.public && other.owner == from.owner && resolvers+others > 0
	})
}

// excused reports whether a missing endpoint of a Service is not a fault of the server:
// no resolver was ready, or the test itself changed the Service or its objects.
func (r *replay) excused(private privateService) bool {
	namespace := private.public.Namespace
	return r.withoutResolvers ||
		r.touched.objects[key{service, private.public}] ||
		r.touched.objects[keyOf(service, namespace, private.name)] ||
		r.touched.objects[keyOf(endpointSlice, namespace, private.public.Name)]
}

func (r *replay) touchedPrivate(namespace string) bool {
	return slices.ContainsFunc(serviceNames, func(name string) bool {
		return r.touched.objects[keyOf(service, namespace, resources.PrivateServiceName(name))] || r.touched.objects[keyOf(service, namespace, name)]
	})
}

func (r *replay) gap(c change, format string, arguments ...any) {
	what := "write"
	if c.now == nil {
		what = "deletion"
	}
	r.gaps = append(r.gaps, fmt.Sprintf("%s of %s %s, revision %d: ", what, c.kind, c.NamespacedName, c.revision)+fmt.Sprintf(format, arguments...))
}
