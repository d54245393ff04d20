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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// terminatingGrace is how long the resolver slice is kept after a target was scaled
// to zero while endpoints are still ready: they are about to be deleted, also when
// the target was woken in the meantime. Endpoints that are ready for longer are
// not those of terminating pods, and may serve.
const terminatingGrace = 10 * time.Second

// modeFacts are the observations that the mode follows from.
type modeFacts struct {
	// readyEndpoints is the number of ready endpoints in the public Service's
	// own slices.
	readyEndpoints int
	// always is true with the policy Always.
	always bool
	// scalingDown is true while the target is being scaled down.
	scalingDown bool
	// scaledToZero is true from when a scale-down scaled the target to zero
	// until its scale is known to be that.
	scaledToZero bool
	// atZero is true when the target's scale is known, and is zero.
	atZero bool
	// terminating is true for terminatingGrace after the target was seen to go
	// to zero, as long as endpoints that were ready then may still be.
	terminating bool
	// podsLeft is true when the target still has pods.
	podsLeft bool
	// sliceInPlace is true while there is a resolver slice.
	sliceInPlace bool
}

// decideMode returns the desired mode and why.
func decideMode(facts modeFacts) (v1alpha1.Mode, string) {
	switch {
	case facts.readyEndpoints == 0:
		return v1alpha1.ModeProxy, "no endpoint of the Service is ready"
	case facts.always:
		return v1alpha1.ModeProxy, "spec.proxy.policy is Always"
	case facts.scalingDown:
		return v1alpha1.ModeProxy, "the target is being put to sleep"
	case facts.scaledToZero:
		return v1alpha1.ModeProxy, "the target was put to sleep"
	case facts.terminating:
		return v1alpha1.ModeProxy, "the target was scaled to zero, and its pods are leaving"
	case facts.atZero && facts.podsLeft && facts.sliceInPlace:
		return v1alpha1.ModeProxy, "the last pods of the target are leaving"
	default:
		return v1alpha1.ModeServe, "an endpoint of the Service is ready"
	}
}

// reconcileMode is the phase mode. It decides the step of the scale-down and the
// mode.
func (c *Controller) reconcileMode(_ context.Context, p *pass) {
	if !p.manages() {
		return
	}
	p.scaleDown = c.nextScaleDownStep(p)
	p.desiredMode, p.why = decideMode(c.modeFacts(p))
}

func (c *Controller) modeFacts(p *pass) modeFacts {
	proxy := p.elastiService.Spec.Proxy
	return modeFacts{
		readyEndpoints: p.readyEndpoints,
		always:         proxy != nil && proxy.Policy == v1alpha1.ProxyAlways,
		scalingDown:    p.scaleDown.needsResolvers(),
		scaledToZero:   p.state.scaledToZero(),
		atZero:         p.target.AtZero(),
		terminating:    p.state.terminating(),
		podsLeft:       p.target.Scale != nil && p.target.Scale.Existing > 0,
		sliceInPlace:   len(p.ownSlices) > 0,
	}
}
