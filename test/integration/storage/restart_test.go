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

package storage

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// No acknowledged write is lost when kube-apiserver is killed repeatedly under a load of
// writes, and the watch cache recovers.
func TestRestartsOfTheHostLoseNothing(t *testing.T) {
	const restarts = 3
	others.Lock()
	t.Cleanup(others.Unlock)
	store := newStack(t, setup{cached: true})
	acknowledged := map[string]bool{}
	for i := range restarts {
		ctx, stop := context.WithCancel(t.Context())
		created := make(chan []string)
		go func() { created <- createUntil(ctx, store, fmt.Sprintf("load-%d", i)) }()
		if err := host.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		stop()
		for _, name := range <-created {
			acknowledged[name] = true
		}
		after := fmt.Sprintf("after-%d", i)
		create(t, store, "ns", after)
		acknowledged[after] = true
		// Without the watch cache, the storage serves a Get, and a list fails.
		await(t, "the watch cache goes on", func() bool {
			return store.ReadinessCheck() == nil && store.Get(t.Context(), podPrefix+"ns/"+after, storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}) == nil
		})
	}
	for _, pod := range list(t, store, storage.ListOptions{}).Items {
		delete(acknowledged, pod.Name)
	}
	if len(acknowledged) > 0 {
		t.Errorf("acknowledged, and not stored: %v", acknowledged)
	}
}

// createUntil creates pods until ctx ends, and returns the names of those whose
// creation was acknowledged.
func createUntil(ctx context.Context, store storage.Interface, prefix string) []string {
	var names []string
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if store.Create(ctx, podPrefix+"ns/"+name, newPod("ns", name), nil, 0) == nil {
			names = append(names, name)
		}
	}
	return names
}
