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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// settleTime is how long after the last change what follows it may still be
// written, before the rest begins, and what it left in memory be collected: when
// nothing happens, that is done every two minutes.
const settleTime = 150 * time.Second

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
	// CPUPercent is how much of one processor it uses.
	CPUPercent float64
	// Writes are the changes of objects that were seen.
	Writes []Write
}

// Write is one change of an object, which a client wrote.
type Write struct {
	// Change is Added, Modified or Deleted.
	Change watch.EventType
	// Resource and Name say which object it is, Manager the client that wrote it last.
	Resource, Name, Manager string
}

// String says what was done to which object, and by which client.
func (w Write) String() string {
	return fmt.Sprintf("%s %s %s by %q", w.Change, w.Resource, w.Name, w.Manager)
}

// writeOf returns what an event of a watch says of a write.
func writeOf(resource string, event watch.Event) Write {
	write := Write{Change: event.Type, Resource: resource}
	object, err := meta.Accessor(event.Object)
	if err != nil {
		return write
	}
	write.Name = object.GetNamespace() + "/" + object.GetName()
	var latest time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Time != nil && !entry.Time.Time.Before(latest) {
			latest, write.Manager = entry.Time.Time, entry.Manager
		}
	}
	return write
}

// Rest observes a process while nothing happens.
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
	var mu sync.Mutex
	var writes []Write
	for resource, namespace := range written {
		objects := client.Resource(resource).Namespace(namespace)
		list, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return Rest{}, fmt.Errorf("listing %s: %w", resource.Resource, err)
		}
		watcher, err := objects.Watch(watching, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		group.Go(func() error {
			return follow(watching, resource.Resource, watcher, err, func(event watch.Event) {
				mu.Lock()
				defer mu.Unlock()
				writes = append(writes, writeOf(resource.Resource, event))
			})
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
	return Rest{CPUPercent: 100 * float64(after-before) / float64(took), Writes: writes}, nil
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
