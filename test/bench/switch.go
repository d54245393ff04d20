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
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// switching counts the requests that fail while applications are put to sleep and wake
// under steady traffic. The delays of the controller are those between the moments of
// the observer.
func switching(ctx context.Context, b *bench) error {
	stage, leave, err := b.newStage(ctx)
	if err != nil {
		return err
	}
	defer leave()
	result, err := b.Switch(ctx, stage.namespace, stage.observer, cluster.RoundOptions{
		Applications: 20, Rounds: 50, Clients: 1, PerSecond: 10, Timeout: 45 * time.Minute,
	})
	for _, failure := range result.Failures {
		fmt.Println("  failed:", failure)
	}
	if err != nil {
		return err
	}
	fmt.Printf("%d switches each way, %d requests, %d failed\n", result.Rounds, result.Requests, result.Failed)
	moments := stage.observer.Since(time.Time{})
	b.durations("endpoint of the Service ready → resolver slice removed", delays(moments, cluster.EndpointReady, cluster.ResolversRemoved))
	b.durations("target scaled to zero by another client → resolver slice in place", sleepDelays(moments))
	b.set("switch_total", float64(result.Rounds))
	b.set("switch_failed", float64(result.Failed))
	return nil
}

// delays are the times from each first change of a Service to the next second change of it.
func delays(moments []cluster.Moment, first, second cluster.Change) []time.Duration {
	var durations []time.Duration
	since := make(map[string]time.Time)
	for _, moment := range moments {
		switch moment.Change {
		case first:
			since[moment.Name] = moment.At
		case second:
			if start, ok := since[moment.Name]; ok {
				durations = append(durations, moment.At.Sub(start))
				delete(since, moment.Name)
			}
		}
	}
	return durations
}

// sleepDelays are the times from each scaling to zero to the resolver slice.
// The Deployments and Services have the same names.
func sleepDelays(moments []cluster.Moment) []time.Duration {
	var relevant []cluster.Moment
	for _, moment := range moments {
		if moment.Change != cluster.Scaled || moment.Detail == "0" {
			relevant = append(relevant, moment)
		}
	}
	return delays(relevant, cluster.Scaled, cluster.ResolversAdded)
}
