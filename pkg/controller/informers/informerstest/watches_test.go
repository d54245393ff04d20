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

package informerstest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	hostfake "k8s.io/client-go/kubernetes/fake"
)

// What happens between the list of an informer and its watch is not lost.
func TestWatchBeginsWithTheList(t *testing.T) {
	t.Parallel()
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	}
	client := hostfake.NewClientset(service("deleted"), service("changed"))
	WatchFromList(t, &client.Fake, client.Tracker())
	services := client.CoreV1().Services("shop")
	list, err := services.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("listed %v, %v", list, err)
	}
	if err := services.Delete(t.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Update(t.Context(), service("changed"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	events, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := services.Create(t.Context(), service("new"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		event watch.EventType
		name  string
	}{{watch.Deleted, "deleted"}, {watch.Modified, "changed"}, {watch.Added, "new"}} {
		event, ok := <-events.ResultChan()
		if !ok || event.Type != want.event || event.Object.(*corev1.Service).Name != want.name {
			t.Errorf("got %v, want %v", event, want)
		}
	}
	events.Stop()
	if _, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}); err == nil {
		t.Error("the same events can be watched twice")
	}
}
