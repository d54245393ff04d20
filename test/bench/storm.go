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

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/bench/scale"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	stormServices   = 1_000
	stormNamespaces = 100
	// stormPeriod is how long it takes until each service has got its request.
	stormPeriod = time.Second
	// stormWakeTimeout bounds the time until all targets are scaled, stormTimeout the
	// whole benchmark.
	stormWakeTimeout = time.Minute
	stormTimeout     = 10 * time.Minute
	// stormFailuresShown is how many failures are printed.
	stormFailuresShown = 20
)

// storm measures how long it takes to scale the targets of 1,000 ElastiServices
// that all sleep and are all woken within a second, on a real kube-apiserver
// without any pods.
func storm(ctx context.Context, b *bench) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stormTimeout)
	defer cancel()
	control, err := environment.StartForMeasuring(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, control.Stop(context.WithoutCancel(ctx)), control.Remove()) }()
	stage := scale.NewAsleep(control, stormServices, stormNamespaces)
	if err := errors.Join(stage.Prepare(ctx), stage.Create(ctx)); err != nil {
		return err
	}
	if err := stage.AwaitRight(ctx); err != nil {
		return err
	}
	waking, stop := context.WithTimeout(ctx, stormWakeTimeout)
	defer stop()
	result, err := stage.Storm(waking, stormPeriod)
	if err != nil {
		return err
	}
	for _, failure := range result.Failures[:min(stormFailuresShown, len(result.Failures))] {
		fmt.Println("  failed:", failure)
	}
	b.durations("wake sent → response", result.Calls)
	b.set("storm_failed", float64(len(result.Failures)))
	if result.Scaled == 0 {
		return fmt.Errorf("not every target was scaled within %s", stormWakeTimeout)
	}
	b.durations("first wake sent → last target scaled", []time.Duration{result.Scaled})
	b.set("storm_1000_services_s", result.Scaled.Seconds())
	return nil
}
