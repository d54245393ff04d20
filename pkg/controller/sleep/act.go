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
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	eventActionSleep = "Sleep"
	eventActionWake  = "Wake"
)

func isDryRun(elastiService *v1alpha1.ElastiService) bool {
	return elastiService.Annotations[v1alpha1.AnnotationDryRun] == "true"
}

// act carries out a decision.
func (s *Scheduler) act(ctx context.Context, elastiService *v1alpha1.ElastiService, known *subject, decision Decision) error {
	if s.options.DryRun || isDryRun(elastiService) {
		s.announce(elastiService, known, decision)
		return nil
	}
	known.announced = ActionNone
	logger := klog.FromContext(ctx).V(2)
	switch decision.Action {
	case ActionSleep:
		if err := s.options.Sleeper.Sleep(ctx, elastiService); err != nil {
			return err
		}
		// A target that stays awake all the same is tried again after another
		// cooldown.
		known.history.IdleSince = s.clock.Now()
		logger.Info("Asked for a target to be put to sleep", "elastiService", klog.KObj(elastiService))
		s.event(elastiService, v1alpha1.ReasonSleepRequested, eventActionSleep, decision.Message)
	case ActionWake:
		if err := s.options.Waker.Wake(ctx, elastiService, decision.Message); err != nil {
			return err
		}
		logger.Info("Woke a target", "elastiService", klog.KObj(elastiService), "reason", decision.Reason)
		s.event(elastiService, v1alpha1.ReasonWakeRequested, eventActionWake, decision.Message)
	}
	return nil
}

// announce says what would be done, once until something else would be.
func (s *Scheduler) announce(elastiService *v1alpha1.ElastiService, known *subject, decision Decision) {
	if decision.Action == known.announced {
		return
	}
	known.announced = decision.Action
	switch decision.Action {
	case ActionSleep:
		s.event(elastiService, v1alpha1.ReasonWouldSleep, eventActionSleep, "dry run: "+decision.Message)
	case ActionWake:
		s.event(elastiService, v1alpha1.ReasonWouldWake, eventActionWake, "dry run: "+decision.Message)
	}
}

func (s *Scheduler) event(elastiService *v1alpha1.ElastiService, reason, action, message string) {
	s.options.Recorder.Eventf(&corev1.ObjectReference{
		APIVersion:      v1alpha1.SchemeGroupVersion.String(),
		Kind:            "ElastiService",
		Namespace:       elastiService.Namespace,
		Name:            elastiService.Name,
		UID:             elastiService.UID,
		ResourceVersion: elastiService.ResourceVersion,
	}, nil, corev1.EventTypeNormal, reason, action, "%s", message)
}
