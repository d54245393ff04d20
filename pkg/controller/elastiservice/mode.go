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
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// leavingTime is how long the resolver slice is kept after a target was scaled
// to zero while endpoints are still ready: they are about to go, also when the
// target was woken in the meantime. Endpoints that are ready for longer are not
// those of pods that leave, and may serve.
const leavingTime = 10 * time.Second

// modeFacts are the observations that the mode follows from.
type modeFacts struct {
	// readyEndpoints is the number of ready endpoints in the public Service's
	// own slices.
	readyEndpoints int
	// always is true with the policy Always.
	always bool
	// descending is true while the target is being put to sleep.
	descending bool
	// slept is true from when a descent scaled the target to zero until its
	// scale is known to be that.
	slept bool
	// AtZero is true when the target's scale is known to ask for no replicas.
	atZero bool
	// leaving is true for leavingTime after the target was seen to go to zero,
	// as long as the endpoints that were ready then are not seen to have gone.
	leaving bool
	// podsLeft is true when the target still has pods.
	podsLeft bool
	// sliceInPlace is true while there is a resolver slice.
	sliceInPlace bool
}

// decideMode returns the mode that is wanted and why.
func decideMode(facts modeFacts) (v1alpha1.Mode, string) {
	switch {
	case facts.readyEndpoints == 0:
		return v1alpha1.ModeProxy, "no endpoint of the Service is ready"
	case facts.always:
		return v1alpha1.ModeProxy, "spec.proxy.policy is Always"
	case facts.descending:
		return v1alpha1.ModeProxy, "the target is being put to sleep"
	case facts.slept:
		return v1alpha1.ModeProxy, "the target was put to sleep"
	case facts.leaving:
		return v1alpha1.ModeProxy, "the target was scaled to zero, and its pods are leaving"
	case facts.atZero && facts.podsLeft && facts.sliceInPlace:
		return v1alpha1.ModeProxy, "the last pods of the target are leaving"
	default:
		return v1alpha1.ModeServe, "an endpoint of the Service is ready"
	}
}
