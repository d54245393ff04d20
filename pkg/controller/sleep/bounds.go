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
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// boundTimes returns an ElastiService in which no time is later than now. Times come
// from the clocks of other replicas, or from before this clock was set back: one in
// the future would count as use until then. It counts as the time at which it was
// first seen, in before, which was watched as such, also when it is not in the future any
// more. The ElastiService itself is not modified; before and watched are nil for a new one,
// and the same when nothing was bounded.
func boundTimes(elastiService, watched, before *v1alpha1.ElastiService, now time.Time) *v1alpha1.ElastiService {
	if before == watched && !isAhead(elastiService, now) {
		return elastiService
	}
	bounded := elastiService.DeepCopy()
	if watched == nil {
		watched, before = &v1alpha1.ElastiService{}, &v1alpha1.ElastiService{}
	}
	bounded.CreationTimestamp = *boundTime(&bounded.CreationTimestamp, &watched.CreationTimestamp, &before.CreationTimestamp, now)
	status, seen, was := &bounded.Status, &watched.Status, &before.Status
	status.LastScaledUpTime = boundTime(status.LastScaledUpTime, seen.LastScaledUpTime, was.LastScaledUpTime, now)
	status.LastActivityTime = boundTime(status.LastActivityTime, seen.LastActivityTime, was.LastActivityTime, now)
	status.SleptTime = boundTime(status.SleptTime, seen.SleptTime, was.SleptTime, now)
	status.SleepRequestedTime = boundTime(status.SleepRequestedTime, seen.SleepRequestedTime, was.SleepRequestedTime, now)
	for i := range status.Activity {
		reported := &status.Activity[i]
		reportedSeen, reportedWas := &v1alpha1.ResolverActivity{}, &v1alpha1.ResolverActivity{}
		for j := range seen.Activity {
			// The bounded copy has the same entries as what was watched.
			if seen.Activity[j].Resolver == reported.Resolver {
				reportedSeen, reportedWas = &seen.Activity[j], &was.Activity[j]
			}
		}
		reported.ReportTime = *boundMicroTime(&reported.ReportTime, &reportedSeen.ReportTime, &reportedWas.ReportTime, now)
		reported.ObservedSince = *boundMicroTime(&reported.ObservedSince, &reportedSeen.ObservedSince, &reportedWas.ObservedSince, now)
		reported.LastRequestTime = boundMicroTime(reported.LastRequestTime, reportedSeen.LastRequestTime, reportedWas.LastRequestTime, now)
	}
	if bounded.CreationTimestamp.Equal(&elastiService.CreationTimestamp) && equality.Semantic.DeepEqual(&bounded.Status, &elastiService.Status) {
		return elastiService
	}
	return bounded
}

// isAhead reports whether an ElastiService has a time that is later than now.
func isAhead(elastiService *v1alpha1.ElastiService, now time.Time) bool {
	status := &elastiService.Status
	for _, t := range []*metav1.Time{&elastiService.CreationTimestamp, status.LastScaledUpTime, status.LastActivityTime, status.SleptTime, status.SleepRequestedTime} {
		if t != nil && t.After(now) {
			return true
		}
	}
	for i := range status.Activity {
		reported := &status.Activity[i]
		for _, t := range []*metav1.MicroTime{&reported.ReportTime, &reported.ObservedSince, reported.LastRequestTime} {
			if t != nil && t.After(now) {
				return true
			}
		}
	}
	return false
}

func boundTime(t, watched, before *metav1.Time, now time.Time) *metav1.Time {
	if t == nil {
		return nil
	}
	if before != nil && t.Equal(watched) {
		t = before
	}
	if t.After(now) {
		bounded := metav1.NewTime(now)
		return &bounded
	}
	return t
}

func boundMicroTime(t, watched, before *metav1.MicroTime, now time.Time) *metav1.MicroTime {
	if t == nil {
		return nil
	}
	if before != nil && t.Equal(watched) {
		t = before
	}
	if t.After(now) {
		bounded := metav1.NewMicroTime(now)
		return &bounded
	}
	return t
}
