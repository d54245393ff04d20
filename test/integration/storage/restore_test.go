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
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// lostRevisions is how many revisions of the host cluster a restore takes back. It is more
// than a kube-apiserver writes when it starts.
const lostRevisions = 3000

// The etcd of the host cluster is restored from an older backup without a bump of its
// revision, so that the host is behind what the watch cache has seen. A watch that goes on
// there would see nothing until the host has had as many changes.
func TestRestoreOfTheHostToAnOlderRevisionIsNoticed(t *testing.T) {
	others.Lock()
	t.Cleanup(others.Unlock)
	store := newStack(t, setup{cached: true})
	create(t, store, "ns", "kept")
	backup := filepath.Join(t.TempDir(), "backup")
	if err := host.SaveHost(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	raiseRevision(t)
	lost := create(t, store, "ns", "lost")
	if pods := list(t, store, storage.ListOptions{}); len(pods.Items) != 2 {
		t.Fatalf("before the restore there are %d pods", len(pods.Items))
	}
	if err := host.RestoreHostToItsRevision(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	written := create(t, store, "ns", "written")
	if versionOf(t, written) >= versionOf(t, lost) {
		t.Fatalf("the host cluster is at %s after the restore, and was at %s before", written.ResourceVersion, lost.ResourceVersion)
	}
	want := []string{"kept", "written"}
	current := storage.ListOptions{Recursive: true, Predicate: storage.Everything}
	await(t, "the watch cache has what the host cluster has", func() bool {
		pods := &example.PodList{}
		if store.GetList(t.Context(), podPrefix, current, pods) == nil && !slices.Equal(namesOf(pods), want) {
			t.Fatalf("a current list has %q, want %q", namesOf(pods), want)
		}
		// Without the watch cache, the storage serves a Get.
		return store.ReadinessCheck() == nil && store.Get(t.Context(), podPrefix+"ns/written", storage.GetOptions{ResourceVersion: "0"}, &example.Pod{}) == nil
	})
	if pods := list(t, store, storage.ListOptions{}); !slices.Equal(namesOf(pods), want) {
		t.Errorf("a current list has %q, want %q", namesOf(pods), want)
	}
	watching, err := newReplica(t, setup{}).Watch(t.Context(), podPrefix, storage.ListOptions{ResourceVersion: lost.ResourceVersion, Recursive: true, Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	event := next(t, watching)
	if status, _ := event.Object.(*metav1.Status); event.Type != watch.Error || status == nil || status.Code != http.StatusGone {
		t.Errorf("the watch from a version that was lost begins with %v", event)
	}
}

// raiseRevision raises the revision of the host cluster.
func raiseRevision(t *testing.T) {
	t.Helper()
	withEtcd(t, host.EtcdEndpoint(), func(client *clientv3.Client) {
		for i := range lostRevisions {
			if _, err := client.Put(t.Context(), "/raised", strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func versionOf(t *testing.T, pod *example.Pod) uint64 {
	t.Helper()
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

func namesOf(pods *example.PodList) []string {
	var names []string
	for i := range pods.Items {
		names = append(names, pods.Items[i].Name)
	}
	return names
}
