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
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// A store that takes a second for a write must not cost a Service its
// endpoints.
func TestSliceDoesNotWaitForAStatusThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("cart", 2, 2)
	c.setEndpoints(shop, "cart", "10.1.0.1", "10.1.0.2")
	c.create(cartElastiService())
	writing, released := make(chan struct{}), make(chan struct{})
	started, release := sync.OnceFunc(func() { close(writing) }), sync.OnceFunc(func() { close(released) })
	c.elasti.PrependReactor("patch", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), `"replicas":3`) {
			started()
			<-released
		}
		return false, nil, nil
	})
	c.start()
	t.Cleanup(release)
	c.eventuallyMode("cart", v1alpha1.ModeServe)
	c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	c.eventually(func() string {
		if c.elastiService("cart").Status.Replicas != 2 {
			return "the replicas"
		}
		return ""
	})

	c.setDeployment("cart", 3, 2)
	<-writing
	c.setDeployment("cart", 0, 2)
	c.setEndpoints(shop, "cart")
	c.eventually(func() string {
		if len(c.resolverSlices("cart")) == 0 {
			return "the resolver slice, while a status is being written"
		}
		return ""
	})
	release()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.Replicas != 0 || status.SleptTime == nil {
			return "the last status"
		}
		return ""
	})
}

func TestOverlayIsWhatWasDecidedUntilTheWatchHasIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	writer := newStatusWriter(c.elasti, c.options.Clock, func(types.NamespacedName) string { return "" }, ignoreWritten)
	defer writer.queue.ShutDown()
	watched := cartElastiService()
	watched.ResourceVersion = "7"
	watched.Status.LastActivityTime = &metav1.Time{}
	decided := &v1alpha1.ElastiServiceStatus{Replicas: 3, Mode: v1alpha1.ModeServe, ProxyPorts: []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10001}}}
	if !writer.want(watched, decided) {
		t.Fatal("a new status is not wanted")
	}
	overlaid := writer.overlay(watched)
	if overlaid.Status.Replicas != 3 || overlaid.Status.LastActivityTime == nil || overlaid.Spec.Service != watched.Spec.Service {
		t.Errorf("overlaid is %+v", overlaid)
	}
	if len(overlaid.Status.ProxyPorts) != 0 {
		t.Errorf("proxy ports %v count before they are recorded", overlaid.Status.ProxyPorts)
	}
	if watched.Status.Replicas != 0 {
		t.Error("what the watch has was changed")
	}

	writer.wanted[keyOf(watched)].version = "9"
	if got := writer.overlay(watched).Status.ProxyPorts; len(got) != 1 {
		t.Errorf("recorded proxy ports are %v", got)
	}
	if writer.want(writer.overlay(watched), decided) {
		t.Error("a status that is written is wanted again")
	}
	watched.ResourceVersion = "9"
	if got := writer.overlay(watched); got != watched || len(writer.wanted) != 0 {
		t.Errorf("the watch has it, and still %+v is kept", writer.wanted)
	}

	writer.want(watched, decided)
	recreated := cartElastiService()
	recreated.UID = "another"
	if got := writer.overlay(recreated); got != recreated || len(writer.wanted) != 0 {
		t.Error("an object that was made again has the status of its predecessor")
	}
}

func TestAWatchThatIsFasterThanTheAnswerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	written := cartElastiService()
	written.ResourceVersion = "9"
	c.elasti.PrependReactor("patch", "elastiservices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, written, nil })
	for version, left := range map[string]int{"": 1, "8": 1, "9": 0, "10": 0} {
		writer := newStatusWriter(c.elasti, c.options.Clock, func(types.NamespacedName) string { return version }, ignoreWritten)
		decided := &v1alpha1.ElastiServiceStatus{Replicas: 3, Mode: v1alpha1.ModeServe}
		if err := writer.writeNow(t.Context(), cartElastiService(), decided); err != nil {
			t.Fatal(err)
		}
		writer.queue.ShutDown()
		if len(writer.wanted) != left {
			t.Errorf("with version %q in the watch, %d statuses are kept, want %d", version, len(writer.wanted), left)
		}
	}
}

func ignoreWritten(*v1alpha1.ElastiService, *v1alpha1.ElastiServiceStatus) {}

// What is told of a written status is what is new since the last one that was
// written, whatever was decided on in between.
func TestWrittenStatusIsComparedWithTheOneBefore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	answer := cartElastiService()
	answer.ResourceVersion = "9"
	c.elasti.PrependReactor("patch", "elastiservices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, answer, nil })
	type change struct{ before, after int32 }
	var written []change
	writer := newStatusWriter(c.elasti, c.options.Clock, func(types.NamespacedName) string { return "" },
		func(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
			written = append(written, change{before.Status.Replicas, status.Replicas})
		})
	defer writer.queue.ShutDown()
	want := func(replicas int32) {
		t.Helper()
		watched := cartElastiService()
		watched.ResourceVersion = "7"
		if !writer.want(writer.overlay(watched), &v1alpha1.ElastiServiceStatus{Replicas: replicas}) {
			t.Fatalf("%d replicas are not wanted", replicas)
		}
	}
	write := func() {
		t.Helper()
		if err := writer.write(t.Context(), keyOf(cartElastiService())); err != nil {
			t.Fatal(err)
		}
	}
	want(1)
	want(2)
	write()
	write()
	want(3)
	want(4)
	write()
	if expected := []change{{0, 2}, {2, 4}}; !slices.Equal(written, expected) {
		t.Errorf("what is told is %v, want %v", written, expected)
	}
}
