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
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// regardingRecorder has what the Events of each reason are about.
type regardingRecorder struct {
	events.EventRecorder

	mu       sync.Mutex
	byReason map[string][]corev1.ObjectReference
}

// Eventf implements events.EventRecorder.
func (r *regardingRecorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	r.mu.Lock()
	r.byReason[reason] = append(r.byReason[reason], *regarding.(*corev1.ObjectReference))
	r.mu.Unlock()
	r.EventRecorder.Eventf(regarding, related, eventType, reason, action, note, args...)
}

func (r *regardingRecorder) of(reason string) []corev1.ObjectReference {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byReason[reason]
}

// An Event about an ElastiService that does not exist any more is seen by no user of it.
func TestEventsAboutADeletedElastiServiceGoToWhatIsLeft(t *testing.T) {
	service := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: shop, Name: "cart", UID: "cart-service"}
	target := corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: shop, Name: "cart"}
	known := target
	known.UID = "cart"
	for name, test := range map[string]struct {
		lose   func(*cluster)
		reason string
		want   corev1.ObjectReference
	}{
		"its Service":                              {func(*cluster) {}, v1alpha1.ReasonTargetRestored, service},
		"its target":                               {func(c *cluster) { c.deleteService("cart") }, v1alpha1.ReasonTargetRestored, known},
		"its Service, of what cannot be woken":     {func(c *cluster) { c.scaling.fail(errors.New("denied")) }, v1alpha1.ReasonTargetNotRestored, service},
		"its target, which cannot be woken itself": {func(c *cluster) { c.deleteService("cart"); c.scaling.fail(errors.New("denied")) }, v1alpha1.ReasonTargetNotRestored, target},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			recorder := &regardingRecorder{EventRecorder: c.events, byReason: map[string][]corev1.ObjectReference{}}
			c.options.Recorder = recorder
			public := cartService()
			public.UID = service.UID
			c.create(public)
			c.createOther()
			c.create(cartElastiService())
			stop := c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			stop()
			test.lose(c)
			c.remove("cart")
			c.start()
			c.eventuallyEvent(test.reason)
			for _, regarding := range recorder.of(test.reason) {
				if regarding != test.want {
					t.Errorf("the Event is about %+v, want %+v", regarding, test.want)
				}
			}
		})
	}
}
