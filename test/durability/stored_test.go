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
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// expectStored expects of a load that has stopped that everything is stored that was
// acknowledged, and that the controller carries deletions out.
func (l *load) expectStored(t *testing.T) {
	t.Helper()
	t.Logf("%d writes were acknowledged, and %d failed, of which %d were found to be carried out", l.acknowledged.Load(), l.failed.Load(), l.found.Load())
	for _, w := range l.writers {
		for _, complaint := range w.complaints {
			t.Errorf("while writer %d wrote: %s", w.number, complaint)
		}
	}
	stored := l.list(t)
	for _, r := range l.records() {
		if complaint := r.complaint(stored[r.name]); complaint != "" {
			t.Errorf("in the end: %s", complaint)
		}
		delete(stored, r.name)
	}
	for name := range stored {
		t.Errorf("in the end: %s exists, which no writer has created", name)
	}
}

func (l *load) records() (all []*record) {
	for _, w := range l.writers {
		all = append(all, w.records...)
	}
	return all
}

// list returns what is stored in the namespace of the load.
func (l *load) list(t *testing.T) map[string]*v1alpha1.ElastiService {
	t.Helper()
	list, err := l.client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("listing the ElastiServices: %v", err)
	}
	stored := make(map[string]*v1alpha1.ElastiService, len(list.Items))
	for i := range list.Items {
		stored[list.Items[i].Name] = &list.Items[i]
	}
	return stored
}

// expectServicesFree expects that what was deleted is removed in the end, and has left its
// Service to another ElastiService.
func (l *load) expectServicesFree(t *testing.T) {
	t.Helper()
	var deleted []*record
	for _, r := range l.records() {
		if r.deleted {
			deleted = append(deleted, r)
		}
	}
	if len(deleted) == 0 {
		t.Error("no deletion was acknowledged: this shows nothing")
	}
	l.awaitRemoved(t, deleted)
	named := map[string]bool{}
	for _, r := range l.records() {
		if !r.deleted {
			named[r.service] = true
		}
	}
	var free []string
	for _, r := range deleted {
		if !named[r.service] {
			named[r.service] = true
			free = append(free, r.service)
		}
	}
	l.nameAgain(t, free)
}

// awaitRemoved waits until ElastiServices whose deletion was acknowledged do not exist any
// more.
func (l *load) awaitRemoved(t *testing.T, deleted []*record) {
	t.Helper()
	eventually(t, "what was deleted does not exist any more", func(context.Context) string {
		stored, left, example := l.list(t), 0, ""
		for _, r := range deleted {
			if object := stored[r.name]; object != nil {
				left++
				example = fmt.Sprintf("%s with the finalizers %v and the conditions %+v", r.name, object.Finalizers, object.Status.Conditions)
			}
		}
		if left > 0 {
			return fmt.Sprintf("%d of %d exist, such as %s", left, len(deleted), example)
		}
		return ""
	})
}

// nameAgain creates an ElastiService for each of the Services.
func (l *load) nameAgain(t *testing.T, services []string) {
	t.Helper()
	next := make(chan string)
	var creating sync.WaitGroup
	for range writerCount {
		creating.Go(func() {
			for service := range next {
				r := &record{name: "again-" + service, service: service, sent: 1}
				created, err := l.client.Create(t.Context(), r.newObject(), metav1.CreateOptions{})
				if err != nil {
					t.Errorf("the Service %s, whose ElastiService was deleted, is not free: %v", service, err)
				} else if complaint := r.complaint(created); complaint != "" {
					t.Error(complaint)
				}
			}
		})
	}
	for _, service := range services {
		next <- service
	}
	close(next)
	creating.Wait()
}
