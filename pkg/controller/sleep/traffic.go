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

package sleep

import (
	"slices"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// trafficSeen returns when resolvers last saw traffic, or cannot have seen what
// there was because they had just been started. Zero if they never did.
func trafficSeen(elastiService *v1alpha1.ElastiService, now time.Time) time.Time {
	if reports.HasOpen(elastiService, now) {
		return now
	}
	seen := reports.LastRequest(elastiService)
	if !decidedByTraffic(elastiService) {
		return seen
	}
	staleness := reports.Staleness(elastiService)
	for i := range elastiService.Status.Activity {
		if reported := &elastiService.Status.Activity[i]; reports.IsFresh(reported, staleness, now) {
			seen = latest(seen, reported.ObservedSince.Time)
		}
	}
	return seen
}

// trafficChanged reports whether reports changed in a way that leads to another
// result, before the next sync is due.
func trafficChanged(before, after *v1alpha1.ElastiService) bool {
	if !decidedByTraffic(after) {
		return after.Status.SleepRequestedTime != nil && openReported(after) && !openReported(before)
	}
	if after.Status.SleepRequestedTime != nil && reports.LastRequest(after).After(reports.LastRequest(before)) {
		return true
	}
	staleness := reports.Staleness(after)
	for i := range after.Status.Activity {
		reported := &after.Status.Activity[i]
		known := reports.Find(before, reported.Resolver)
		if known == nil || (known.Open > 0) != (reported.Open > 0) || !reports.IsFresh(known, staleness, reported.ReportTime.Time) {
			return true
		}
	}
	return false
}

// openReported reports whether a resolver has reported requests or connections as
// open, however long ago.
func openReported(elastiService *v1alpha1.ElastiService) bool {
	return slices.ContainsFunc(elastiService.Status.Activity, func(reported v1alpha1.ResolverActivity) bool { return reported.Open > 0 })
}

func decidedByTraffic(elastiService *v1alpha1.ElastiService) bool {
	return slices.ContainsFunc(elastiService.Spec.Triggers, func(trigger v1alpha1.ScaleTrigger) bool {
		return trigger.Type == triggers.TypeTraffic
	})
}
