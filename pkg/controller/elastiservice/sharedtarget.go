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
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// sharedPoll is how often an ElastiService polls whether another one of its target has
// completed a scale-down, which takes scaleTimeout at most.
const sharedPoll = 250 * time.Millisecond

// scaleDowns are the scale-downs of targets. Several ElastiServices may have one
// target: each puts the resolvers in the path of its own Service, and the target is
// scaled when all of them have. It is safe for concurrent use.
type scaleDowns struct {
	mu sync.Mutex
	// byTarget has an entry while an ElastiService of the target agrees, while
	// the target is being scaled, and until its ElastiServices have seen that it was.
	// An ElastiService that is deleted by then sees nothing: sweep removes the entry.
	byTarget map[resources.TargetKey]*scaleDown
	// swept is when stale entries were last removed.
	swept time.Time
	// targets are the targets of the ElastiServices that agree.
	targets map[types.NamespacedName]resources.TargetKey
}

// scaleDown is the scale-down of one target.
type scaleDown struct {
	// agreed has the ElastiServices that agree to scale their target to zero. The value is
	// false while the resolvers of an ElastiService are found not to be in the path, until
	// its drain has begun again.
	agreed map[types.NamespacedName]bool
	// scaling is true while one of them scales the target to zero, scaled once that
	// is done and the requests for it are being removed.
	scaling, scaled bool
	// scaledAt is when it was last scaled to zero.
	scaledAt time.Time
}

func newScaleDowns() *scaleDowns {
	return &scaleDowns{byTarget: map[resources.TargetKey]*scaleDown{}, targets: map[types.NamespacedName]resources.TargetKey{}}
}

// agree records that resolvers hold the traffic of an ElastiService.
func (s *scaleDowns) agree(target resources.TargetKey, key types.NamespacedName, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now)
	if before, ok := s.targets[key]; ok && before != target {
		delete(s.byTarget[before].agreed, key)
	}
	of, ok := s.byTarget[target]
	if !ok {
		of = &scaleDown{agreed: map[types.NamespacedName]bool{}}
		s.byTarget[target] = of
	}
	of.agreed[key] = true
	s.targets[key] = target
}

// withdraw records that the resolvers of an ElastiService may leave the path. It
// returns false, and does not, while the target is being scaled to zero: the
// resolvers have to stay then, and so has the request for sleep, whose absence means
// to the worker that scales the target that it was woken.
func (s *scaleDowns) withdraw(key types.NamespacedName, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	target, ok := s.targets[key]
	if !ok {
		return true
	}
	of := s.byTarget[target]
	if of.scaling {
		return false
	}
	delete(s.targets, key)
	delete(of.agreed, key)
	s.drop(target, of, now)
	return true
}

// lose records that the resolvers of an ElastiService are not in the path, also while
// its target is being scaled to zero: the worker that scales it finds that by allAgree.
func (s *scaleDowns) lose(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if target, ok := s.targets[key]; ok {
		s.byTarget[target].agreed[key] = false
	}
}

// takeLost reports whether lose was called for an ElastiService since it agreed,
// and since takeLost reported it.
func (s *scaleDowns) takeLost(key types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	target, ok := s.targets[key]
	if !ok || s.byTarget[target].agreed[key] {
		return false
	}
	if of := s.byTarget[target]; !of.scaling {
		delete(of.agreed, key)
		delete(s.targets, key)
	}
	return true
}

// begin begins to scale a target to zero, if all of keys agree and no other
// worker does. A true result must be followed by end.
func (s *scaleDowns) begin(target resources.TargetKey, keys []types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.byTarget[target]
	if !ok || of.scaling {
		return false
	}
	for _, key := range keys {
		if !of.agreed[key] {
			return false
		}
	}
	of.scaling = true
	return true
}

// allAgree reports whether all of keys agree.
func (s *scaleDowns) allAgree(target resources.TargetKey, keys []types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.byTarget[target]
	for _, key := range keys {
		if !ok || !of.agreed[key] {
			return false
		}
	}
	return true
}

// waiting returns the ElastiServices of a target that agree: they wait for the others.
func (s *scaleDowns) waiting(target resources.TargetKey) (keys []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of, ok := s.byTarget[target]; ok {
		keys = slices.Collect(maps.Keys(of.agreed))
	}
	return keys
}

// recordScaled records that a target, for which begin was called, was scaled to zero.
func (s *scaleDowns) recordScaled(target resources.TargetKey, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of, ok := s.byTarget[target]; ok {
		of.scaled, of.scaledAt = true, now
	}
}

// end ends what begin began. If the target was scaled, all of its ElastiServices have
// to agree again the next time.
func (s *scaleDowns) end(target resources.TargetKey, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.byTarget[target]
	if of.scaled {
		for key := range of.agreed {
			delete(s.targets, key)
		}
		clear(of.agreed)
	}
	of.scaling, of.scaled = false, false
	s.drop(target, of, now)
}

// scaledAt returns when a target was last scaled to zero. Zero when that was longer
// than terminatingGrace ago.
func (s *scaleDowns) scaledAt(target resources.TargetKey, now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.byTarget[target]
	if !ok || now.Sub(of.scaledAt) >= terminatingGrace {
		if ok {
			s.drop(target, of, now)
		}
		return time.Time{}
	}
	return of.scaledAt
}

// drop removes an entry that is stale. It must be called with mu held.
func (s *scaleDowns) drop(target resources.TargetKey, of *scaleDown, now time.Time) {
	if len(of.agreed) == 0 && !of.scaling && now.Sub(of.scaledAt) >= terminatingGrace {
		delete(s.byTarget, target)
	}
}

// sweep removes stale entries, now and then. It must be called
// with mu held.
func (s *scaleDowns) sweep(now time.Time) {
	if now.Sub(s.swept) < terminatingGrace {
		return
	}
	s.swept = now
	for target, of := range s.byTarget {
		s.drop(target, of, now)
	}
}

// siblings returns the ElastiServices of the target of an ElastiService, itself among
// them, that have to agree before the target is scaled to zero: all but those whose
// Service another ElastiService has.
func (c *Controller) siblings(ctx context.Context, elastiService *v1alpha1.ElastiService) ([]types.NamespacedName, error) {
	keys := []types.NamespacedName{resources.KeyOf(elastiService)}
	for _, other := range indexed[*v1alpha1.ElastiService](c.elastiServices.in(elastiService.Namespace), byTarget, target.Of(elastiService).NamespacedName()) {
		shared, err := c.shareTarget(ctx, elastiService, other)
		if err != nil {
			return nil, err
		}
		if other.UID != elastiService.UID && shared && c.hasSay(other) {
			keys = append(keys, resources.KeyOf(other))
		}
	}
	return keys, nil
}

// shareTarget reports whether two ElastiServices have the same target, however they
// name its kind. It does not depend on either having been synced.
func (c *Controller) shareTarget(ctx context.Context, one, other *v1alpha1.ElastiService) (bool, error) {
	if !resources.MayShareTarget(one, other) {
		return false, nil
	}
	if one.Spec.ScaleTargetRef != other.Spec.ScaleTargetRef {
		for _, elastiService := range []*v1alpha1.ElastiService{one, other} {
			resource, err := c.scaling.Resolve(ctx, target.Of(elastiService))
			var kindError *scaling.KindError
			switch {
			case errors.As(err, &kindError):
				// It names nothing that can be scaled.
			case err != nil:
				return false, fmt.Errorf("resolving the targets of ElastiServices %s and %s: %w", one.Name, other.Name, err)
			default:
				c.targetKeys.Learn(&elastiService.Spec.ScaleTargetRef, resource.Resource)
			}
		}
	}
	return c.targetKeys.Of(one) == c.targetKeys.Of(other), nil
}

// hasSay reports whether an ElastiService has a say in whether its target sleeps. While it is
// being deleted it has, until its Service needs no resolvers any more.
func (c *Controller) hasSay(elastiService *v1alpha1.ElastiService) bool {
	return c.ownsService(elastiService) && (elastiService.DeletionTimestamp.IsZero() || hasFinalizer(elastiService))
}

// ownsService reports whether no other ElastiService has the Service that one names.
func (c *Controller) ownsService(elastiService *v1alpha1.ElastiService) bool {
	owning := owningElastiService(c.claimants(elastiService))
	return owning == nil || owning.UID == elastiService.UID
}

// claimants returns the ElastiServices that name the Service that one names.
func (c *Controller) claimants(elastiService *v1alpha1.ElastiService) []*v1alpha1.ElastiService {
	return indexed[*v1alpha1.ElastiService](c.elastiServices.in(elastiService.Namespace), byService, resources.PublicServiceKey(elastiService))
}

// storedSiblings returns what siblings does, as the storage has them. The watch may
// be behind, and lack the newest ones.
func (c *Controller) storedSiblings(ctx context.Context, elastiService *v1alpha1.ElastiService) ([]*v1alpha1.ElastiService, error) {
	list, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.scaleTargetRef.name", elastiService.Spec.ScaleTargetRef.Name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("reading whether the target is still to sleep: %w", err)
	}
	var found []*v1alpha1.ElastiService
	for i := range list.Items {
		other := &list.Items[i]
		shared, err := c.shareTarget(ctx, elastiService, other)
		if err != nil {
			return nil, err
		}
		if shared && (other.UID == elastiService.UID || c.hasSay(other)) {
			found = append(found, other)
		}
	}
	return found, nil
}

// leaveScaleDown records that the resolvers of an ElastiService may leave the path of
// its Service, and that its request for sleep may be removed. When the target is being
// scaled to zero just now, it returns false and has the ElastiService synced again.
func (c *Controller) leaveScaleDown(p *pass) bool {
	if p.state.completing != nil {
		// It has another target now, or is not managed any more: the target that may be at
		// zero is woken for that.
		p.state.endCompletion()
		c.scaleDowns.end(p.state.completingTarget, c.clock.Now())
	}
	if c.scaleDowns.withdraw(p.key(), c.clock.Now()) {
		return true
	}
	c.queue.AddAfter(p.key(), sharedPoll)
	return false
}
