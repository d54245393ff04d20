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
	"os"
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// leaveTimeout bounds cleaning up after a benchmark.
const leaveTimeout = 3 * time.Minute

// stage is a namespace for one benchmark, which is watched.
type stage struct {
	*cluster.Cluster
	namespace string
	observer  *cluster.Observer
}

// newStage makes a namespace and starts to watch it. leave ends that, and
// deletes the namespace.
func (b *bench) newStage(ctx context.Context) (_ *stage, leave func(), err error) {
	namespace, err := b.CreateNamespace(ctx, "bench")
	if err != nil {
		return nil, nil, err
	}
	watching, stop := context.WithCancel(ctx)
	var ended sync.WaitGroup
	leave = func() {
		stop()
		ended.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := errors.Join(b.DeleteNamespace(ctx, namespace), b.AwaitNamespaceDeleted(ctx, namespace)); err != nil {
			fmt.Fprintln(os.Stderr, "bench: cleaning up:", err)
		}
	}
	observer, err := b.NewObserver(namespace)
	if err != nil {
		leave()
		return nil, nil, err
	}
	started := make(chan struct{})
	ended.Go(func() { observer.Run(watching, started) })
	select {
	case <-started:
		return &stage{Cluster: b.Cluster, namespace: namespace, observer: observer}, leave, nil
	case <-ctx.Done():
		leave()
		return nil, nil, ctx.Err()
	}
}
