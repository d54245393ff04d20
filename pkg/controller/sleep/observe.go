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

// observe returns everything that a decision depends on but the triggers.
func (s *Scheduler) observe(seen snapshot) Observation {
	elastiService, status := seen.elastiService, &seen.elastiService.Status
	now := s.clock.Now()
	observation := Observation{
		Now:            now,
		Interval:       s.options.PollingInterval,
		Cooldown:       reports.Cooldown(elastiService),
		Created:        elastiService.CreationTimestamp.Time,
		LastWake:       latest(timeOf(status.LastScaledUpTime), seen.woken),
		LastActivity:   timeOf(status.LastActivityTime),
		TrafficSeen:    trafficSeen(elastiService, now),
		History:        seen.subject.history,
		ReplicasKnown:  knowsReplicas(elastiService),
		Replicas:       status.Replicas,
		SleepRequested: status.SleepRequestedTime != nil,
		Conflict:       seen.conflict,
	}
	if seen.subject.generation != elastiService.Generation {
		// Other triggers said idle.
		observation.History.IdleSince = time.Time{}
	}
	if ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady); ready == nil {
		observation.Obstacle = "it is not known whether its Service is covered"
	} else if ready.Status != metav1.ConditionTrue {
		observation.Obstacle = ready.Message
	} else if compatible := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTargetCompatible); compatibility.ForbidsSleep(compatible) {
		observation.Obstacle = compatible.Message
	}
	if spec := elastiService.Spec.EnabledPeriod; spec != nil {
		period, err := schedule.Parse(
			cmp.Or(spec.Schedule, v1alpha1.DefaultEnabledSchedule),
			cmp.Or(spec.Duration, v1alpha1.DefaultEnabledDuration),
			cmp.Or(spec.TimeZone, v1alpha1.DefaultEnabledTimeZone))
		if err != nil {
			// Validation keeps such periods out. When to sleep is not known then.
			observation.Obstacle = "its enabledPeriod cannot be read: " + err.Error()
		}
		observation.EnabledPeriod = period
	}
	return observation
}

// knowsReplicas reports whether the status says how many replicas the target has.
// While another ElastiService has the Service, that one decides.
func knowsReplicas(elastiService *v1alpha1.ElastiService) bool {
	conditions := elastiService.Status.Conditions
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionTargetFound) && !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionConflict)
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
