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
	corev1 "k8s.io/api/core/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Actions of Events: what the controller was doing.
const (
	actionReconcile  = "Reconcile"
	actionSwitchMode = "SwitchMode"
	actionWake       = "Wake"
	actionSleep      = "Sleep"
	actionFinalize   = "Finalize"
)

// event records an Event about an ElastiService.
func (c *Controller) event(elastiService *v1alpha1.ElastiService, eventType, reason, action, note string, args ...any) {
	c.eventAbout(v1alpha1.ReferenceTo(elastiService), eventType, reason, action, note, args...)
}

// eventAbout records an Event about an object.
func (c *Controller) eventAbout(regarding *corev1.ObjectReference, eventType, reason, action, note string, args ...any) {
	c.recorder.Eventf(regarding, nil, eventType, reason, action, note, args...)
}
