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

package app

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

// maxEventKeys bounds how many different Events are tracked. An Event that was
// evicted is written as a new one instead of being counted.
const maxEventKeys = 4096

// maxNoteBytes is the length of the longest note that the API of Events accepts.
const maxNoteBytes = 1024

// aggregatingRecorder records Events about an object with the same text as one,
// with a count. The recorder that it uses aggregates Events of one reason about one
// version of an object, whatever their text is. An ElastiService has a new version
// with each wake: so an Event refers to the version of the first one with the same
// key. It is safe for concurrent use.
type aggregatingRecorder struct {
	events.EventRecorder
	// versions has the resource version of the first Event of each key.
	versions *lru.Cache
}

// eventKey is what Events that are aggregated have in common.
type eventKey struct {
	object                          types.UID
	eventType, reason, action, note string
}

func newAggregatingRecorder(recorder events.EventRecorder) *aggregatingRecorder {
	return &aggregatingRecorder{EventRecorder: recorder, versions: lru.New(maxEventKeys)}
}

// Eventf records an Event without waiting for it to be written. A note that is too
// long, such as one with the error of a webhook, is cut: the server would reject it.
func (r *aggregatingRecorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	text := shorten(fmt.Sprintf(note, args...))
	if reference, ok := regarding.(*corev1.ObjectReference); ok {
		regarding = r.atFirstVersion(reference, eventKey{object: reference.UID, eventType: eventType, reason: reason, action: action, note: text})
	}
	r.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", text)
}

func shorten(note string) string {
	const ellipsis = "…"
	if len(note) <= maxNoteBytes {
		return note
	}
	return strings.ToValidUTF8(note[:maxNoteBytes-len(ellipsis)], "") + ellipsis
}

// atFirstVersion returns the reference with the resource version of the first Event
// with the same key.
func (r *aggregatingRecorder) atFirstVersion(reference *corev1.ObjectReference, key eventKey) *corev1.ObjectReference {
	version, ok := r.versions.Get(key)
	if !ok {
		r.versions.Add(key, reference.ResourceVersion)
		return reference
	}
	first := *reference
	first.ResourceVersion = version.(string)
	return &first
}

// eventSink writes Events. It logs in one line that the API server rejected one: the
// broadcaster would log the whole Event as an error, also when
// the namespace is deleted and nothing is wrong.
type eventSink struct {
	events.EventSink
}

// Create writes a new Event.
func (s eventSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	created, err := s.EventSink.Create(ctx, event)
	if apierrors.IsAlreadyExists(err) || !isRejection(err) {
		return created, err
	}
	reportRejection(ctx, event, err)
	return event, nil
}

// Patch counts an Event that was written before.
func (s eventSink) Patch(ctx context.Context, event *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	patched, err := s.EventSink.Patch(ctx, event, patch)
	if apierrors.IsNotFound(err) || !isRejection(err) {
		// An Event that does not exist any more is created again.
		return patched, err
	}
	reportRejection(ctx, event, err)
	return event, nil
}

// isRejection reports whether an error is a response of the server. The
// broadcaster does not retry after such an error.
func isRejection(err error) bool {
	_, ok := err.(apierrors.APIStatus)
	return ok
}

func reportRejection(ctx context.Context, event *eventsv1.Event, err error) {
	logger := klog.FromContext(ctx).WithValues("kind", event.Regarding.Kind, "object", klog.KRef(event.Regarding.Namespace, event.Regarding.Name), "reason", event.Reason)
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		logger.V(2).Info("Dropped an Event of a deleted namespace", "err", err)
		return
	}
	logger.Error(err, "Failed to record an Event, will not retry")
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
