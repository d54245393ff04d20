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
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
)

// eventSink is where Events are written. Those about a namespace that is being
// deleted are refused there, which is as it should be and no error.
type eventSink struct {
	events.EventSink
}

// Create writes a new Event.
func (s eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	created, err := s.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return event, nil
	}
	return created, err
}

func recordEvents(broadcaster events.EventBroadcaster) func(context.Context) error {
	return func(ctx context.Context) error {
		defer broadcaster.Shutdown()
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("recording events: %w", err)
		}
		<-ctx.Done()
		return nil
	}
}
