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

package elastiservice

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestConvertedWatchPassesFailuresOn(t *testing.T) {
	events := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
	converted := &convertedWatch{events: events, result: make(chan watch.Event), stopped: make(chan struct{})}
	go converted.run(t.Context())
	expired := &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired}
	events.Error(expired)
	if got := <-converted.ResultChan(); got.Type != watch.Error || got.Object != expired {
		t.Errorf("the event is %v", got)
	}
	events.Stop()
	if event, open := <-converted.ResultChan(); open {
		t.Errorf("after its end, the watch has %v", event)
	}
}
