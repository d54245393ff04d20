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

package startup

import (
	"time"

	eventsv1 "k8s.io/api/events/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// eventReasons maps the reasons of Events to those of a Problem.
var eventReasons = map[string]string{
	"FailedCreate": v1alpha1.ReasonPodsNotCreated,

	"FailedMount":        v1alpha1.ReasonVolumeNotMounted,
	"FailedAttachVolume": v1alpha1.ReasonVolumeNotMounted,
	"FailedMapVolume":    v1alpha1.ReasonVolumeNotMounted,

	"FailedCreatePodSandBox":   v1alpha1.ReasonPodNotStarted,
	"NetworkNotReady":          v1alpha1.ReasonPodNotStarted,
	"FailedCreatePodContainer": v1alpha1.ReasonPodNotStarted,
}

// clockSkew is how far the clock of a component that records Events may be behind.
const clockSkew = 5 * time.Second

// newestEvent returns the newest of newest and some Events. An Event of a success is
// newer than those of the failures before it.
func newestEvent(newest *eventsv1.Event, events []eventsv1.Event) *eventsv1.Event {
	for i := range events {
		if newest == nil || !lastSeen(&events[i]).Before(lastSeen(newest)) {
			newest = &events[i]
		}
	}
	return newest
}

// ofEvent returns the problem that the last Event about an object reports if it
// happened since a time, or nil.
func ofEvent(last *eventsv1.Event, since time.Time) *Problem {
	if last == nil || lastSeen(last).Before(since.Add(-clockSkew)) {
		return nil
	}
	reason, known := eventReasons[last.Reason]
	if !known {
		return nil
	}
	return newProblem(reason, "%s", last.Note)
}

// lastSeen returns when an Event occurred last.
func lastSeen(event *eventsv1.Event) time.Time {
	seen := event.DeprecatedLastTimestamp.Time
	if event.EventTime.After(seen) {
		seen = event.EventTime.Time
	}
	if event.Series != nil && event.Series.LastObservedTime.After(seen) {
		seen = event.Series.LastObservedTime.Time
	}
	return seen
}
