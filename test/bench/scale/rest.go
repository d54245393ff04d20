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

package scale

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// settleTime is how long after the last change what follows it may still be
// written, before the rest begins.
const settleTime = 30 * time.Second

// written are the resources that the server could write, with the namespace of
// those that others write elsewhere.
var written = map[schema.GroupVersionResource]string{
	{Group: "elasti.truefoundry.com", Version: "v1alpha1", Resource: "elastiservices"}: "",
	{Version: "v1", Resource: "services"}:                                              "",
	{Version: "v1", Resource: "secrets"}:                                               "",
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}:             "",
	{Group: "apps", Version: "v1", Resource: "deployments"}:                            "",
	{Group: "events.k8s.io", Version: "v1", Resource: "events"}:                        "",
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}:                  environment.SystemNamespace,
}

// Rest is what a server does while nothing happens.
type Rest struct {
	// CPUPercent is how much of one processor it uses, Writes how many changes
	// of objects were seen.
	CPUPercent float64
	Writes     int64
}

// Rest looks at a process while nothing happens.
func (s *Stage) Rest(ctx context.Context, pid int, duration time.Duration) (Rest, error) {
	if err := sleep(ctx, settleTime); err != nil {
		return Rest{}, err
	}
	client, err := metadata.NewForConfig(s.control.Admin)
	if err != nil {
		return Rest{}, fmt.Errorf("making the client that watches for writes: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	group, watching := errgroup.WithContext(watching)
	var writes atomic.Int64
	for resource, namespace := range written {
		objects := client.Resource(resource).Namespace(namespace)
		list, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return Rest{}, fmt.Errorf("listing %s: %w", resource.Resource, err)
		}
		watcher, err := objects.Watch(watching, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		group.Go(func() error {
			return follow(watching, resource.Resource, watcher, err, func(watch.Event) { writes.Add(1) })
		})
	}
	before, err := processorTime(pid)
	if err != nil {
		return Rest{}, err
	}
	began := time.Now()
	if err := sleep(watching, duration); err != nil {
		return Rest{}, err
	}
	after, err := processorTime(pid)
	if err != nil {
		return Rest{}, err
	}
	took := time.Since(began)
	stop()
	if err := group.Wait(); err != nil {
		return Rest{}, err
	}
	return Rest{CPUPercent: 100 * float64(after-before) / float64(took), Writes: writes.Load()}, nil
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
