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

package route

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/endpoint"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// drain ends the service of an ElastiService that is deleted, or that is another one now.
// While its private Service is there the controller has not cleaned up after it, such as
// when the storage was replaced by an older one: the resolvers may be in its path, and its
// target asleep, until the controller wakes that in its turn. The service and its ports
// stay until then; a port ends sooner when another service claims it. There are no more of
// these services than private Services.
func (t *Table) drain(key types.NamespacedName) {
	kept := t.entries[key]
	if kept == nil {
		return
	}
	delete(t.entries, key)
	// set without ports opens none, so that it cannot fail.
	_ = t.ports.set(kept.service, nil)
	if before := t.orphans[kept.private]; before != nil {
		t.linger(before)
	}
	t.orphans[kept.private] = kept.service
	t.ports.stay(kept.service)
	t.syncOrphan(kept.private)
}

// syncOrphan has an orphan forward to the pods that its private Service has now, or makes
// it linger when there is no such Service any more, or another ElastiService has it.
func (t *Table) syncOrphan(private types.NamespacedName) {
	orphan := t.orphans[private]
	if orphan == nil {
		return
	}
	// Listing fails only without the indexes, which New has added.
	endpointSlices, _ := t.endpointSlices(private)
	objects, _ := t.objects.ByIndex(byPrivateService, private.String())
	if len(endpointSlices) == 0 || len(objects) > 0 {
		delete(t.orphans, private)
		t.linger(orphan)
		return
	}
	pods := podsOf(endpointSlices)
	orphan.SetPods(pods)
	config := draining(*orphan.Config())
	if !slices.ContainsFunc(pods, func(pod endpoint.Description) bool { return pod.Ready && !pod.Terminating }) {
		// There is nothing that clients could reconnect to.
		config.Mode = v1alpha1.ModeProxy
	}
	orphan.Apply(config)
}

// linger makes a service, and all its ports, linger.
func (t *Table) linger(svc *service.Service) {
	svc.Apply(draining(*svc.Config()))
	t.ports.lingerNow(svc)
	t.draining = append(t.draining, drainingService{service: svc, until: t.options.Clock.Now().Add(t.options.Linger)})
}

// expire ends the ports and services whose linger period is over, and schedules the next
// expiry.
func (t *Table) expire() {
	t.ports.expire()
	now := t.options.Clock.Now()
	for len(t.draining) > 0 && !now.Before(t.draining[0].until) {
		t.draining[0].service.Close()
		t.draining = t.draining[1:]
	}
	t.scheduleExpiry()
}

// scheduleExpiry enqueues the next expiry. There is one timer for all ports and
// services.
func (t *Table) scheduleExpiry() {
	next := t.ports.next()
	if len(t.draining) > 0 && (next.IsZero() || t.draining[0].until.Before(next)) {
		next = t.draining[0].until
	}
	if !next.IsZero() {
		t.queue.AddAfter(expiry, max(0, next.Sub(t.options.Clock.Now())))
	}
}

// closeAll closes all ports and services at once.
func (t *Table) closeAll() {
	for key := range t.entries {
		t.drain(key)
	}
	for private, orphan := range t.orphans {
		delete(t.orphans, private)
		t.linger(orphan)
	}
	t.ports.closeAll()
	for _, drained := range t.draining {
		drained.service.Close()
	}
	t.draining = nil
}
