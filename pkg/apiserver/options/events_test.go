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

package options

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
)

// refusingSink refuses every Event.
type refusingSink struct {
	events.EventSink
	err error
}

func (s refusingSink) Create(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	return nil, s.err
}

func TestEventsOfNamespacesThatAreBeingDeletedAreNoErrors(t *testing.T) {
	terminating := apierrors.NewForbidden(eventsv1.Resource("events"), "app", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	forbidden := apierrors.NewForbidden(eventsv1.Resource("events"), "app", errors.New("no permission"))
	event := &eventsv1.Event{}
	if written, err := (eventSink{refusingSink{err: terminating}}).Create(t.Context(), event); err != nil || written != event {
		t.Errorf("got %v (error: %v), want the event", written, err)
	}
	if _, err := (eventSink{refusingSink{err: forbidden}}).Create(t.Context(), event); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want forbidden", err)
	}
}
