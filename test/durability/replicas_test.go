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

package durability

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	// sharedObjects is how many ElastiServices all writers change, and incrementsEach how
	// often each writer increments each of them.
	sharedObjects  = 4
	incrementsEach = 10
)

// counter is an ElastiService that several writers increment. It is safe for concurrent
// use.
type counter struct {
	name string
	// acknowledged counts the increments that were, and conflicts the attempts that came
	// after another write.
	acknowledged, conflicts atomic.Int64
}

// Half of the writers are at each replica. Each reads an ElastiService and writes it back
// with the next number, and begins again when another writer was first.
func TestWritersOfTwoReplicasLoseNoUpdate(t *testing.T) {
	for _, storage := range []backend{hostCluster, externalEtcd, kine} {
		t.Run(storage.name, func(t *testing.T) {
			replicas := storage.start(t, 2)
			namespace := newNamespace(t)
			clients := clientsOf(t, replicas, namespace)
			counters := createCounters(t, clients[0])
			increment(t, clients, counters)
			for _, c := range counters {
				c.expectStored(t, clients)
			}
		})
	}
}

// clientsOf returns a client of each server that has the namespace in its caches.
func clientsOf(t *testing.T, servers []*environment.Server, namespace string) (clients []elastiv1alpha1client.ElastiServiceInterface) {
	t.Helper()
	for _, server := range servers {
		client := elastiServices(t, directTo(server), namespace)
		eventually(t, "a replica serves the administrator", func(ctx context.Context) string {
			if _, err := client.List(ctx, metav1.ListOptions{}); err != nil {
				return err.Error()
			}
			return ""
		})
		clients = append(clients, client)
	}
	return clients
}

func createCounters(t *testing.T, client elastiv1alpha1client.ElastiServiceInterface) (counters []*counter) {
	t.Helper()
	for i := range sharedObjects {
		c := &counter{name: fmt.Sprintf("counter-%d", i)}
		r := &record{name: c.name, service: c.name}
		if _, err := client.Create(t.Context(), r.newObject(), metav1.CreateOptions{}); err != nil {
			t.Fatalf("creating %s: %v", c.name, err)
		}
		counters = append(counters, c)
	}
	return counters
}

// increment has all writers increment all counters, and returns when they have.
func increment(t *testing.T, clients []elastiv1alpha1client.ElastiServiceInterface, counters []*counter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	var writing sync.WaitGroup
	for i := range writerCount {
		writing.Go(func() {
			for step := range incrementsEach * len(counters) {
				c := counters[(i+step)%len(counters)]
				if err := c.increment(ctx, clients[i%len(clients)]); err != nil {
					t.Errorf("writer %d has not incremented %s: %v", i, c.name, err)
					return
				}
			}
		})
	}
	writing.Wait()
}

// increment increments the counter once.
func (c *counter) increment(ctx context.Context, client elastiv1alpha1client.ElastiServiceInterface) error {
	for {
		object, err := client.Get(ctx, c.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		before, err := counterOf(object)
		if err != nil {
			return err
		}
		setCounter(object, before+1)
		_, err = client.Update(ctx, object, metav1.UpdateOptions{})
		if err == nil {
			c.acknowledged.Add(1)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		c.conflicts.Add(1)
	}
}

// expectStored expects that every client reads the number of acknowledged increments.
func (c *counter) expectStored(t *testing.T, clients []elastiv1alpha1client.ElastiServiceInterface) {
	t.Helper()
	want := int(c.acknowledged.Load())
	t.Logf("%s: %d increments were acknowledged, after %d conflicts", c.name, want, c.conflicts.Load())
	if c.conflicts.Load() == 0 {
		t.Errorf("%s: no increment had a conflict: this shows nothing", c.name)
	}
	for i, client := range clients {
		object, err := client.Get(t.Context(), c.name, metav1.GetOptions{})
		if err != nil {
			t.Errorf("reading %s at replica %d: %v", c.name, i, err)
			continue
		}
		if stored, err := counterOf(object); err != nil || stored != want {
			t.Errorf("%s is %d at replica %d (%v), but %d increments were acknowledged", c.name, stored, i, err, want)
		}
	}
}
