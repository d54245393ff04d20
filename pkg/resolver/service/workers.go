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

package service

import (
	"context"
	"sync"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// runAll runs all workers until ctx ends, and passes on changes to each of them. A worker
// that panics is started again.
func runAll(ctx context.Context, tasks *task.Runner, workers []Worker, changed <-chan struct{}) {
	var running sync.WaitGroup
	defer running.Wait()
	signals := make([]chan struct{}, len(workers))
	for i, worker := range workers {
		signal := make(chan struct{}, 1)
		signals[i] = signal
		running.Go(func() { tasks.Repeat(ctx, func() { worker.Run(ctx, signal) }) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		for _, signal := range signals {
			select {
			case signal <- struct{}{}:
			default:
				// The worker has not received the previous change yet.
			}
		}
	}
}
