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
	"flag"
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// scaledDownApplications is the number of applications that are scaled down.
const scaledDownApplications = 8

// scaleDownRound is longer than a scale-down, a wake and the change of the path.
const scaleDownRound = 45 * time.Second

var scaleDownCount = flag.Int("descents", 200, "how often the benchmark descent puts an application to sleep in total")

// scaleDown counts the requests that fail while applications are scaled down under
// traffic that is too little to keep them awake.
func scaleDown(ctx context.Context, b *bench) error {
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	rounds := max(*scaleDownCount/scaledDownApplications, 1)
	result, err := b.ScaleDown(ctx, stage.namespace, stage.observer, cluster.RoundOptions{
		Applications: scaledDownApplications, Rounds: rounds, Clients: 5, PerSecond: 10, Timeout: 5*time.Minute + time.Duration(rounds)*scaleDownRound,
	})
	for _, failure := range result.Failures {
		fmt.Println("  failed:", failure)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d scale-downs, %d requests, %d failed\n", result.Rounds, result.Requests, result.Failed)
	moments := stage.observer.Since(time.Time{})
	b.durations("resolver slice in place → target scaled to zero", delaysUntilZero(moments))
	b.set("descent_total", float64(result.Rounds))
	b.set("descent_failed", float64(result.Failed))
	return nil
}

// delaysUntilZero are the times from each resolver slice to the scaling to zero.
// The Deployments and Services have the same names.
func delaysUntilZero(moments []cluster.Moment) []time.Duration {
	var relevant []cluster.Moment
	for _, moment := range moments {
		if moment.Change != cluster.Scaled || moment.Detail == "0" {
			relevant = append(relevant, moment)
		}
	}
	return delays(relevant, cluster.ResolversAdded, cluster.Scaled)
}
