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
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
)

// Defaults of Options.
const (
	DefaultPollingInterval = 30 * time.Second
	DefaultWorkers         = 64
)

// Options configure a Scheduler. Fields without a default are required.
type Options struct {
	// Evaluators evaluate triggers, by type. A trigger of another type is
	// unknown, so its target is not put to sleep.
	Evaluators map[string]evaluators.Evaluator
	// Sleeper requests sleep of targets, Waker wakes them.
	Sleeper Sleeper
	Waker   Waker
	// Reporter reports the state of triggers and activity to users.
	Reporter Reporter
	// Recorder records Events about ElastiServices.
	Recorder events.EventRecorder
	// Resolvers are the resolvers that are ready. While that is not known, which is the
	// default, each counts as ready.
	Resolvers *evaluators.Resolvers

	// PollingInterval is the time between two evaluations of the triggers of an
	// ElastiService. Defaults to DefaultPollingInterval.
	PollingInterval time.Duration
	// DryRun is true when decisions are not carried out, only recorded as
	// Events. The annotation v1alpha1.AnnotationDryRun does so for one ElastiService.
	DryRun bool
	// Workers is how many targets are synced at a time, half of them of one namespace
	// at most. Syncs that take long, because a server hangs, do not count. Defaults to
	// DefaultWorkers.
	Workers int

	// TargetKeys says which ElastiServices have the same target. It must be what the
	// controller of ElastiServices has. Defaults to one of its own.
	TargetKeys *resources.TargetKeys

	// Clock is the time. Defaults to the real clock.
	Clock clock.WithTicker
	// Metrics count decisions. Defaults to metrics that are not served.
	Metrics *Metrics
}

func (o *Options) complete() error {
	var problems []error
	for name, missing := range map[string]bool{
		"Sleeper":  o.Sleeper == nil,
		"Waker":    o.Waker == nil,
		"Reporter": o.Reporter == nil,
		"Recorder": o.Recorder == nil,
	} {
		if missing {
			problems = append(problems, fmt.Errorf("sleep: Options.%s is missing", name))
		}
	}
	if o.PollingInterval == 0 {
		o.PollingInterval = DefaultPollingInterval
	}
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.Resolvers == nil {
		o.Resolvers = &evaluators.Resolvers{}
	}
	if o.TargetKeys == nil {
		o.TargetKeys = &resources.TargetKeys{}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry(), o.Clock)
	}
	return errors.Join(problems...)
}
