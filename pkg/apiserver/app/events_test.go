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
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
)

// rejectingSink rejects every Event.
type rejectingSink struct {
	events.EventSink
	err error
}

func (s rejectingSink) Create(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	return nil, s.err
}

func (s rejectingSink) Patch(context.Context, *eventsv1.Event, []byte) (*eventsv1.Event, error) {
	return nil, s.err
}

func terminating() error {
	err := apierrors.NewForbidden(eventsv1.Resource("events"), "app", errors.New("the namespace is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	return err
}

// The broadcaster logs an error that its sink returns with the whole Event.
func TestRejectedEventsAreLoggedWithoutTheirText(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		quiet bool
	}{
		"the namespace is deleted":       {apierrors.NewNotFound(corev1.Resource("namespaces"), "shop"), true},
		"the namespace is being deleted": {terminating(), true},
		"no permission":                  {apierrors.NewForbidden(eventsv1.Resource("events"), "app", errors.New("no permission")), false},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(1)))
			ctx := klog.NewContext(t.Context(), logger)
			event := &eventsv1.Event{Note: "text of the event", Reason: "Woken", Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart"}}
			if written, err := (eventSink{rejectingSink{err: test.err}}).Create(ctx, event); err != nil || written != event {
				t.Errorf("got %v (error: %v), which the broadcaster logs as an error; want the Event", written, err)
			}
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if strings.Contains(log, event.Note) {
				t.Errorf("the Event is in the log: %s", log)
			}
			if quiet := log == ""; quiet != test.quiet {
				t.Errorf("the log is %q, want one that is empty: %t", log, test.quiet)
			}
		})
	}
}

func TestSinkLeavesToTheBroadcasterWhatItHandles(t *testing.T) {
	event := &eventsv1.Event{}
	exists := apierrors.NewAlreadyExists(eventsv1.Resource("events"), "app")
	if _, err := (eventSink{rejectingSink{err: exists}}).Create(t.Context(), event); !apierrors.IsAlreadyExists(err) {
		t.Errorf("Create returned %v, want %v", err, exists)
	}
	deleted := apierrors.NewNotFound(eventsv1.Resource("events"), "app")
	if _, err := (eventSink{rejectingSink{err: deleted}}).Patch(t.Context(), event, nil); !apierrors.IsNotFound(err) {
		t.Errorf("Patch returned %v, want %v", err, deleted)
	}
	lost := errors.New("connection refused")
	if _, err := (eventSink{rejectingSink{err: lost}}).Create(t.Context(), event); !errors.Is(err, lost) {
		t.Errorf("Create returned %v, want %v", err, lost)
	}
}

// writingSink reports each write.
type writingSink struct{ writes chan string }

func (s writingSink) Create(_ context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	s.writes <- "new: " + event.Note
	return event, nil
}

func (s writingSink) Update(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	return nil, errors.New("not expected")
}

func (s writingSink) Patch(_ context.Context, event *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	s.writes <- "again: " + event.Note
	return event, nil
}

// The server rejects longer notes, and with them the most important ones: those of errors.
func TestNotesOfEventsAreCutToWhatTheServerTakes(t *testing.T) {
	sink := writingSink{writes: make(chan string, 1)}
	broadcaster := events.NewBroadcaster(sink)
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorder := newAggregatingRecorder(broadcaster.NewRecorder(apiserver.Scheme, "test"))
	regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart", UID: "a"}
	recorder.Eventf(regarding, nil, corev1.EventTypeWarning, "ScaleFailed", "Wake", "cannot wake: %v", strings.Repeat("é", 2000))
	select {
	case write := <-sink.writes:
		note := strings.TrimPrefix(write, "new: ")
		if len(note) > 1024 || !utf8.ValidString(note) || !strings.HasPrefix(note, "cannot wake: éé") {
			t.Errorf("wrote %d bytes: %q", len(note), note)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was written")
	}
}

// Each wake changes the status, and with it the version of the object.
func TestEventsWithTheSameTextAreWrittenOnce(t *testing.T) {
	sink := writingSink{writes: make(chan string, 10)}
	broadcaster := events.NewBroadcaster(sink)
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	recorder := newAggregatingRecorder(broadcaster.NewRecorder(apiserver.Scheme, "test"))
	for _, step := range []struct{ uid, version, reason, note, want string }{
		{"a", "1", "Woken", "scaled to 1", "new: scaled to 1"},
		{"a", "2", "Woken", "scaled to 1", "again: scaled to 1"},
		{"a", "3", "Woken", "scaled to 5", "new: scaled to 5"},
		{"a", "4", "Woken", "scaled to 5", "again: scaled to 5"},
		{"a", "4", "ScaleFailed", "not there", "new: not there"},
		{"a", "5", "ScaleFailed", "not allowed", "new: not allowed"},
		{"a", "6", "ScaleFailed", "not there", "again: not there"},
		{"b", "6", "Woken", "scaled to 1", "new: scaled to 1"},
	} {
		regarding := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart", UID: types.UID(step.uid), ResourceVersion: step.version}
		recorder.Eventf(regarding, nil, corev1.EventTypeNormal, step.reason, "Wake", "%s", step.note)
		select {
		case write := <-sink.writes:
			if write != step.want {
				t.Errorf("%s of %s at version %s: wrote %q, want %q", step.reason, step.uid, step.version, write, step.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s of %s at version %s was not written", step.reason, step.uid, step.version)
		}
		if regarding.ResourceVersion != step.version {
			t.Error("the caller's reference was changed")
		}
	}
}
