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
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/reports"
	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

// observe returns everything that a decision depends on, except for the triggers.
func (s *Scheduler) observe(known *subject) Observation {
	now := s.clock.Now()
	elastiService, status := known.elastiService, &known.elastiService.Status
	observation := Observation{
		Now:                now,
		Interval:           s.options.PollingInterval,
		Cooldown:           reports.Cooldown(elastiService),
		Created:            elastiService.CreationTimestamp.Time,
		LastWake:           latest(timeOf(status.LastScaledUpTime), known.woken),
		LastActivity:       timeOf(status.LastActivityTime),
		TrafficSeen:        trafficSeen(elastiService, now),
		TrafficOpen:        reports.HasOpen(elastiService, now),
		TrafficOpenUnknown: reports.MayHaveOpen(elastiService, s.options.Resolvers.IsReady, now),
		ReadySince:         known.readySince,
		UnreadySince:       known.unreadySince,
		History:            known.history,
		ReplicasKnown:      knowsReplicas(elastiService),
		Replicas:           status.Replicas,
		SleepRequested:     status.SleepRequestedTime != nil,
		SleepRequestedTime: timeOf(status.SleepRequestedTime),
		ByHand:             isByHand(status),
		DecidedToSleep:     known.decidedToSleep,
		Conflict:           known.conflict,
		Obstacle:           obstacle(status.Conditions),
	}
	if known.generation != elastiService.Generation {
		// The triggers that were idle may be others.
		observation.History.IdleSince = time.Time{}
	}
	if spec := elastiService.Spec.EnabledPeriod; spec != nil {
		period, err := schedule.Parse(
			cmp.Or(spec.Schedule, v1alpha1.DefaultEnabledSchedule),
			cmp.Or(spec.Duration, v1alpha1.DefaultEnabledDuration),
			cmp.Or(spec.TimeZone, v1alpha1.DefaultEnabledTimeZone))
		if err != nil {
			// Validation rejects such periods. It is not known when to sleep.
			observation.Obstacle = "its enabledPeriod cannot be read: " + err.Error()
		}
		observation.EnabledPeriod = period
	}
	return observation
}

// obstacle returns why the target could not be put to sleep without losing requests.
// It is empty when the target could. Pods that do not become ready are not an obstacle:
// the target is no less available asleep.
func obstacle(conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return "it is not known yet whether resolvers can hold its requests"
	case ready.Status != metav1.ConditionTrue && !v1alpha1.IsTargetProblem(ready.Reason):
		return ready.Message
	}
	if compatible := meta.FindStatusCondition(conditions, v1alpha1.ConditionTargetCompatible); compatibility.ForbidsSleep(compatible) {
		return compatible.Message
	}
	return ""
}

// isByHand reports whether a client other than the scheduler requests sleep.
func isByHand(status *v1alpha1.ElastiServiceStatus) bool {
	by := status.SleepRequestedBy
	return status.SleepRequestedTime != nil && by != "" && by != v1alpha1.CallerServer
}

// knowsReplicas reports whether the status says how many replicas the target has.
// While another ElastiService has the Service, that one decides.
func knowsReplicas(elastiService *v1alpha1.ElastiService) bool {
	return meta.IsStatusConditionTrue(elastiService.Status.Conditions, v1alpha1.ConditionTargetFound) && !hasConflict(elastiService)
}

// hasConflict reports whether another ElastiService has the Service.
func hasConflict(elastiService *v1alpha1.ElastiService) bool {
	return meta.IsStatusConditionTrue(elastiService.Status.Conditions, v1alpha1.ConditionConflict)
}

func minReplicas(elastiService *v1alpha1.ElastiService) int32 {
	if elastiService.Spec.MinTargetReplicas == nil {
		return v1alpha1.DefaultMinTargetReplicas
	}
	return *elastiService.Spec.MinTargetReplicas
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
