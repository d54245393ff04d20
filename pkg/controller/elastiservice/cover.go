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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// noteScale remembers when the target went to zero, and tells of those who
// scale it up without us.
func (c *Controller) noteScale(ctx context.Context, v *view, memory *memory) {
	if v.target.AtZero() || c.clock.Since(memory.slept) >= leavingTime {
		memory.slept = time.Time{}
	}
	switch {
	case v.target.Scale == nil:
	case !v.target.AtZero():
		if !memory.zeroSince.IsZero() {
			if by := c.scaledUpBy(ctx, v, memory); by != "" {
				c.options.ScaledUp(resources.KeyOf(v.elastiService), by, c.clock.Since(memory.zeroSince))
			}
		}
		if memory.upSince.IsZero() || !memory.zeroSince.IsZero() {
			memory.upSince = c.clock.Now()
		}
		memory.zeroSince = time.Time{}
	case v.elastiService.Status.Replicas > 0 && memory.zeroSince.IsZero():
		memory.zeroSince = c.clock.Now()
		memory.leavingSince = memory.zeroSince
	}
	if v.readyEndpoints == 0 || c.clock.Since(memory.leavingSince) >= leavingTime {
		memory.leavingSince = time.Time{}
	}
}

// somebody is who scales a target from zero through its scale subresource:
// Kubernetes does not tell.
const somebody = "somebody else"

// observationDelay is how much later than it happens a sleep may be observed,
// when it is not known since when the target had been up. A wake that comes in
// between is ours all the same.
const observationDelay = 10 * time.Second

// asleepAfter returns a time after which the target was put to sleep: it was
// seen to be up then. When it was seen to sleep may be much later than it was.
func (m *memory) asleepAfter() time.Time {
	after := m.zeroSince.Add(-observationDelay)
	if !m.upSince.IsZero() && m.upSince.Before(after) {
		return m.upSince
	}
	return after
}

// scaledUpBy returns who scaled a target up that slept, empty if that was us or
// is not known. A scaling of ours is known before it can be observed.
func (c *Controller) scaledUpBy(ctx context.Context, v *view, memory *memory) string {
	switch by := v.target.Object.ScaledBy; {
	case by != "" && by != scaling.FieldManager:
		return by
	case by == "" && !c.options.OthersWake && !c.scaling.ScaledUpSince(ctx, target.Of(v.elastiService), memory.asleepAfter()):
		return somebody
	default:
		return ""
	}
}

// cover puts in place what an ElastiService needs that has its Service.
func (c *Controller) cover(ctx context.Context, v *view, memory *memory, result *outcome) {
	var exhausted *verdict
	result.ports, exhausted = c.assignProxyPorts(v)
	if exhausted != nil {
		result.problems = append(result.problems, *exhausted)
	}
	result.failed(c.ensurePrivate(ctx, v))

	// The proxy ports are recorded before anything points at them, so that a
	// restart cannot give them to somebody else.
	if !slices.Equal(v.elastiService.Status.ProxyPorts, result.ports) {
		recorded := v.elastiService.Status.DeepCopy()
		recorded.ProxyPorts = result.ports
		recorded.PrivateService = resources.PrivateServiceName(v.service.Name)
		if err := c.statuses.WriteNow(ctx, v.elastiService, recorded); err != nil {
			result.failed(err)
			result.mode = observedMode(v)
			return
		}
		v.elastiService = c.latest(v.elastiService, memory)
	}

	descent := c.descentOf(v, memory)
	facts := c.modeFacts(v, memory)
	facts.descending = descent == descentConverge || descent == descentScale
	mode, why := decideMode(facts)
	var desired []*discoveryv1.EndpointSlice
	allListen := true
	if mode == v1alpha1.ModeProxy {
		var listening func(discoveryv1.AddressType) []discoveryv1.Endpoint
		listening, allListen = c.listeningResolvers(ctx, v, memory, result.ports)
		desired = resources.DesiredResolverSlices(v.elastiService, v.service, result.ports, listening)
	}
	removed, err := false, error(nil)
	if allListen || hasEndpoints(desired) || !haveEndpoints(v.ownSlices) {
		removed, err = c.ensureResolverSlices(ctx, desired, v.ownSlices)
	}
	// Otherwise no resolver is known to serve the ports of the Service as they
	// are now. Until one is, those before are better than nobody: resolvers go
	// on listening there for a while.
	result.failed(err)
	if removed {
		memory.sliceRemoved = c.clock.Now()
	}
	if before := v.elastiService.Status.Mode; before != mode {
		c.metrics.switched(resources.KeyOf(v.elastiService), mode, err)
		if err == nil && before != "" {
			klog.FromContext(ctx).V(2).Info("Switched the mode", "elastiService", klog.KObj(v.elastiService), "mode", mode, "why", why)
			c.event(v.elastiService, corev1.EventTypeNormal, v1alpha1.ReasonModeSwitched, actionSwitchMode, "switched to mode %s: %s", mode, why)
		}
	}
	result.mode = mode
	if err != nil {
		result.mode = observedMode(v)
	}
	result.failed(c.descend(ctx, v, memory, descent, result.mode == v1alpha1.ModeProxy && allListen))
	v.elastiService = c.latest(v.elastiService, memory)
	_, err = c.deletePrivateServices(ctx, v, memory, resources.PrivateServiceName(v.service.Name))
	result.failed(err)
	if !memory.leavingSince.IsZero() {
		c.queue.AddAfter(resources.KeyOf(v.elastiService), leavingTime-c.clock.Since(memory.leavingSince))
	}
}

func (c *Controller) modeFacts(v *view, memory *memory) modeFacts {
	proxy := v.elastiService.Spec.Proxy
	facts := modeFacts{
		readyEndpoints: v.readyEndpoints,
		always:         proxy != nil && proxy.Policy == v1alpha1.ProxyAlways,
		atZero:         v.target.AtZero(),
		slept:          !memory.slept.IsZero(),
		leaving:        !memory.leavingSince.IsZero(),
		podsLeft:       v.target.Scale != nil && v.target.Scale.Existing > 0,
		sliceInPlace:   len(v.ownSlices) > 0,
	}
	return facts
}

// observedMode is the mode as the slices say it, for when a switch failed.
func observedMode(v *view) v1alpha1.Mode {
	if len(v.ownSlices) > 0 {
		return v1alpha1.ModeProxy
	}
	return v1alpha1.ModeServe
}

func hasEndpoints(desired []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(desired, func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) > 0 })
}

func haveEndpoints(owned []*observedSlice) bool {
	return slices.ContainsFunc(owned, func(slice *observedSlice) bool { return len(slice.slice.Endpoints) > 0 })
}
