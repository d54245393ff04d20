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

package cluster

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// The stream of the host cluster ends with an error when its context does, and
// either may be seen first.
func TestAWatchThatItsClientStoppedSendsNoError(t *testing.T) {
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		host := watch.NewFakeWithChanSize(1, false)
		w := &watcher{events: host, results: make(chan watch.Event, watchBufferSize), cancel: cancel}
		w.Stop()
		host.Error(&metav1.Status{Status: metav1.StatusFailure, Message: "unable to decode an event from the watch stream: context canceled"})

		w.run(ctx)

		if event, open := <-w.ResultChan(); open {
			t.Fatalf("a stopped watch sent %s %v", event.Type, event.Object)
		}
	}
}
