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

package elastiservice

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

// deletionRetry is the pause between two checks whether a namespace that cannot be read is
// deleted.
const deletionRetry = 30 * time.Second

// unsynced are the ElastiServices that wait until the Services and EndpointSlices of their
// namespaces are cached, by the scope of the watches. With --namespaces, one that cannot be
// read, because it does not exist or its RoleBinding is deleted, holds up no other. It is
// safe for concurrent use.
type unsynced struct {
	mu sync.Mutex
	// waiting is bounded by the ElastiServices that exist or that something was made for:
	// the others are removed when they are deleted.
	waiting map[string]sets.Set[types.NamespacedName]
}

func newUnsynced() *unsynced { return &unsynced{waiting: map[string]sets.Set[types.NamespacedName]{}} }

// add has an ElastiService wait, and reports whether it does: hasSynced reports whether
// there is nothing to wait for by now.
func (u *unsynced) add(scope string, key types.NamespacedName, hasSynced func(namespace string) bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if hasSynced(key.Namespace) {
		return false
	}
	if u.waiting[scope] == nil {
		u.waiting[scope] = sets.New[types.NamespacedName]()
	}
	u.waiting[scope].Insert(key)
	return true
}

// remove ends the waiting of an ElastiService.
func (u *unsynced) remove(scope string, key types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[scope].Delete(key)
}

// take ends the waiting of all ElastiServices of a scope, and returns them.
func (u *unsynced) take(scope string) []types.NamespacedName {
	u.mu.Lock()
	defer u.mu.Unlock()
	waiting := u.waiting[scope].UnsortedList()
	delete(u.waiting, scope)
	return waiting
}

// tried says of each scope whether its watch has been tried: it is cached, or cannot be for
// now. It is safe for concurrent use.
type tried struct {
	scopes map[string]triedScope
}

type triedScope struct {
	once *sync.Once
	done chan struct{}
}

// newTried returns a tried for the managed namespaces; without any, all are managed.
func newTried(namespaces []string) *tried {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	t := &tried{scopes: map[string]triedScope{}}
	for _, namespace := range namespaces {
		t.scopes[namespace] = triedScope{&sync.Once{}, make(chan struct{})}
	}
	return t
}

// record records that the watch of a scope has been tried. Other scopes do not count.
func (t *tried) record(scope string) {
	if found, ok := t.scopes[scope]; ok {
		found.once.Do(func() { close(found.done) })
	}
}

// await waits until all watches have been tried, and reports whether they have: ctx may end
// before.
func (t *tried) await(ctx context.Context) bool {
	for _, scope := range t.scopes {
		select {
		case <-ctx.Done():
			return false
		case <-scope.done:
		}
	}
	return true
}

// hasSynced reports whether all that is watched in a namespace for its ElastiServices is
// cached.
func (c *Controller) hasSynced(namespace string) bool {
	return c.services.in(namespace).HasSynced() && c.endpointSlices.in(namespace).HasSynced()
}

// namespaceSynced enqueues the ElastiServices that wait for the caches of a scope. An
// ElastiService that has to wait for another cache waits again.
func (c *Controller) namespaceSynced(scope string) {
	for _, key := range c.unsynced.take(scope) {
		c.enqueue(key)
	}
}

// namespaceFailed reports that one of the watches of a scope fails.
func (c *Controller) namespaceFailed(scope string, watches *scopedWatch) {
	if handle := watches.in(scope); handle != nil && !handle.HasSynced() {
		c.logger.Error(handle.Problem(), "A namespace cannot be read, and is left as it is until it can be: give the server the permissions that it needs there, or take it off --namespaces", "namespace", scope)
	}
	c.namespaceSynced(scope)
}

// syncUnsynced reports in the status of an ElastiService that its namespace cannot be read
// yet. It removes nothing, as an empty cache proves nothing.
func (c *Controller) syncUnsynced(ctx context.Context, key types.NamespacedName) error {
	object, ok := c.elastiServices.in(key.Namespace).Get(key.Namespace, key.Name)
	if !ok {
		c.forgetUnsynced(key)
		return nil
	}
	c.deletions.exists(object.(*v1alpha1.ElastiService))
	elastiService := c.latest(object.(*v1alpha1.ElastiService), c.states.of(key))
	problem := c.services.in(key.Namespace).Problem()
	if problem == nil {
		problem = c.endpointSlices.in(key.Namespace).Problem()
	}
	if problem == nil {
		return nil
	}
	if !elastiService.DeletionTimestamp.IsZero() {
		if apierrors.IsForbidden(problem) && c.isNamespaceDeleted(ctx, key.Namespace) {
			return c.finalizeUnsynced(ctx, elastiService)
		}
		c.queue.AddAfter(key, deletionRetry)
	}
	c.reportNotReady(elastiService, conditionFalse(v1alpha1.ReasonNamespaceUnreadable, "the namespace cannot be read, so that everything in it stays as it is: give elasti-apiserver the permissions that it needs there: %v", problem))
	return nil
}

// finalizeUnsynced removes the finalizer of an ElastiService whose namespace is deleted, and
// the permission to read it with it: that takes everything in it away, and must not hang.
// In any other namespace the finalizer stays until the target can be woken.
func (c *Controller) finalizeUnsynced(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	if !hasFinalizer(elastiService) {
		return nil
	}
	c.states.of(resources.KeyOf(elastiService)).recordFinalized(elastiService.UID)
	return c.removeFinalizer(ctx, elastiService)
}

// forgetUnsynced drops what is kept of an ElastiService that was deleted and that nothing
// was made for, or is left of. Any other one waits for the caches.
func (c *Controller) forgetUnsynced(key types.NamespacedName) {
	last := c.deletions.last(key)
	if last == nil {
		return
	}
	if c.states.of(key).cleanedUp(last) || last.Status.PrivateService == "" && last.Status.ManagedTarget == nil {
		c.statuses.Forget(key)
		c.forget(key)
		c.unsynced.remove(c.scope(key.Namespace), key)
	}
}
