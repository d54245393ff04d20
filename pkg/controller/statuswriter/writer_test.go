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

package statuswriter

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
)

func TestPendingStatusCountsUntilTheWatchHasIt(t *testing.T) {
	t.Parallel()
	writer := newWriter(elastiService(), "", nil)
	defer writer.queue.ShutDown()
	watched := elastiService()
	watched.ResourceVersion = "7"
	watched.Status.LastActivityTime = &metav1.Time{}
	decided := &v1alpha1.ElastiServiceStatus{Replicas: 3, Mode: v1alpha1.ModeServe, ProxyPorts: []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10001}}}
	if !writer.Enqueue(watched, decided) {
		t.Fatal("a new status is not enqueued")
	}
	pending := writer.WithPending(watched)
	if pending.Status.Replicas != 3 || pending.Status.LastActivityTime == nil || pending.Spec.Service != watched.Spec.Service {
		t.Errorf("the pending one is %+v", pending)
	}
	if len(pending.Status.ProxyPorts) != 0 {
		t.Errorf("proxy ports %v count before they are recorded", pending.Status.ProxyPorts)
	}
	if watched.Status.Replicas != 0 {
		t.Error("what the watch has was changed")
	}

	writer.pending[resources.KeyOf(watched)].version = "9"
	if got := writer.WithPending(watched).Status.ProxyPorts; len(got) != 1 {
		t.Errorf("recorded proxy ports are %v", got)
	}
	if writer.Enqueue(writer.WithPending(watched), decided) {
		t.Error("a status that is written is enqueued again")
	}
	watched.ResourceVersion = "9"
	if got := writer.WithPending(watched); got != watched || len(writer.pending) != 0 {
		t.Errorf("the watch has it, and still %+v is kept", writer.pending)
	}

	writer.Enqueue(watched, decided)
	recreated := elastiService()
	recreated.UID = "another"
	if got := writer.WithPending(recreated); got != recreated || len(writer.pending) != 0 {
		t.Error("an object that was made again has the status of its predecessor")
	}
}

// A sync that does not know that its ports are recorded writes them again, and waits for
// the store.
func TestRecordedPortsCountWhileTheWatchIsBehind(t *testing.T) {
	t.Parallel()
	recorded := []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10001}}
	stored := elastiService()
	stored.ResourceVersion = "9"
	writer := newWriter(stored, "", nil)
	defer writer.queue.ShutDown()
	watched := elastiService()
	watched.ResourceVersion = "7"
	if err := writer.WriteNow(t.Context(), watched, &v1alpha1.ElastiServiceStatus{ProxyPorts: recorded}); err != nil {
		t.Fatal(err)
	}
	for _, replicas := range []int32{3, 0} {
		writer.Enqueue(writer.WithPending(watched), &v1alpha1.ElastiServiceStatus{ProxyPorts: recorded, Replicas: replicas})
		if got := writer.WithPending(watched).Status; !slices.Equal(got.ProxyPorts, recorded) || got.Replicas != replicas {
			t.Errorf("with %d replicas, the ports %v are recorded", got.Replicas, got.ProxyPorts)
		}
	}
	watched.ResourceVersion = "8"
	if got := writer.WithPending(watched).Status.ProxyPorts; len(got) > 0 {
		t.Errorf("the ports %v are recorded, of which a later version knows nothing", got)
	}
}

func TestAWatchThatIsFasterThanTheResponseLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	written := elastiService()
	written.ResourceVersion = "9"
	for version, left := range map[string]int{"": 1, "8": 1, "9": 0, "10": 0} {
		writer := newWriter(written, version, nil)
		decided := &v1alpha1.ElastiServiceStatus{Replicas: 3, Mode: v1alpha1.ModeServe}
		if err := writer.WriteNow(t.Context(), elastiService(), decided); err != nil {
			t.Fatal(err)
		}
		writer.queue.ShutDown()
		if len(writer.pending) != left {
			t.Errorf("with version %q in the watch, %d statuses are kept, want %d", version, len(writer.pending), left)
		}
	}
}

// A namespace in which a thousand statuses are to be written, such as the first ones of
// new ElastiServices, has its turn among others.
func TestStatusesOfANamespaceWithManyDelayNoOther(t *testing.T) {
	t.Parallel()
	writer := newWriter(elastiService(), "", nil)
	defer writer.queue.ShutDown()
	change := func(namespace, name string) {
		changed := elastiService()
		changed.Namespace, changed.Name = namespace, name
		writer.Enqueue(changed, &v1alpha1.ElastiServiceStatus{Replicas: 3})
	}
	for number := range 1000 {
		change("crowd", strconv.Itoa(number))
	}
	change("shop", "cart")
	first, _ := writer.queue.Get()
	second, _ := writer.queue.Get()
	if first.Namespace != "crowd" || second.Namespace != "shop" {
		t.Errorf("the statuses of %s and %s are the first that are written", first, second)
	}
}

// The fields and conditions of a status that other writers own stay as they are when the
// controller writes its part.
func TestFieldsOfOtherWritersStay(t *testing.T) {
	t.Parallel()
	others := v1alpha1.ElastiServiceStatus{
		LastActivityTime:   ptr.To(metav1.Unix(1000, 0)),
		LastWake:           &v1alpha1.WakeRecord{Time: metav1.Unix(2000, 0), By: "user alice"},
		SleepRequestedTime: ptr.To(metav1.Unix(3000, 0)),
		SleepRequestedBy:   "user alice",
		Activity:           []v1alpha1.ResolverActivity{{Resolver: "a", Open: 1}},
		TargetSharedWith:   []string{"grpc"},
		Conditions:         []metav1.Condition{{Type: v1alpha1.ConditionSleeping, Status: metav1.ConditionTrue}, {Type: "Checked"}},
	}
	stored := elastiService()
	stored.Status = *others.DeepCopy()
	writer := newWriter(stored, "", nil)
	defer writer.queue.ShutDown()
	if err := writer.WriteNow(t.Context(), elastiService(), &v1alpha1.ElastiServiceStatus{
		Replicas:   3,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.ConditionSleeping, Status: metav1.ConditionUnknown}},
	}); err != nil {
		t.Fatal(err)
	}
	want := others
	want.Replicas = 3
	want.Conditions = append([]metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}, others.Conditions...)
	if !equality.Semantic.DeepEqual(stored.Status, want) {
		t.Errorf("the status is %+v, want %+v", stored.Status, want)
	}
}

// statuses is a store with one ElastiService.
type statuses struct{ stored *v1alpha1.ElastiService }

func (s statuses) UpdateStatus(_ context.Context, _ types.NamespacedName, _ types.UID, change func(*v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error) {
	return s.stored, change(s.stored)
}

// newWriter returns a writer of the status of a stored ElastiService, while the
// watch has a version of it.
// written, which may be nil, is called with what was written.
func newWriter(stored *v1alpha1.ElastiService, watched string, written func(*v1alpha1.ElastiService, *v1alpha1.ElastiServiceStatus)) *Writer {
	if written == nil {
		written = func(*v1alpha1.ElastiService, *v1alpha1.ElastiServiceStatus) {}
	}
	return New(Options{
		Statuses: statuses{stored},
		Clock:    clock.RealClock{},
		Watched:  func(types.NamespacedName) string { return watched },
		Written:  written,
		Failed:   func(context.Context, types.NamespacedName, error) {},
	})
}

func elastiService() *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "cart-uid", Generation: 1},
		Spec:       v1alpha1.ElastiServiceSpec{Service: "cart"},
	}
}

// What is reported of a written status is what is new since the last one that was
// written, whatever was decided on in between.
func TestWrittenStatusIsComparedWithTheOneBefore(t *testing.T) {
	t.Parallel()
	response := elastiService()
	response.ResourceVersion = "9"
	type change struct{ before, after int32 }
	var written []change
	writer := newWriter(response, "",
		func(before *v1alpha1.ElastiService, status *v1alpha1.ElastiServiceStatus) {
			written = append(written, change{before.Status.Replicas, status.Replicas})
		})
	defer writer.queue.ShutDown()
	want := func(replicas int32) {
		t.Helper()
		watched := elastiService()
		watched.ResourceVersion = "7"
		if !writer.Enqueue(writer.WithPending(watched), &v1alpha1.ElastiServiceStatus{Replicas: replicas}) {
			t.Fatalf("%d replicas are not enqueued", replicas)
		}
	}
	write := func() {
		t.Helper()
		if err := writer.write(t.Context(), resources.KeyOf(elastiService())); err != nil {
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
		t.Errorf("what is reported is %v, want %v", written, expected)
	}
}
