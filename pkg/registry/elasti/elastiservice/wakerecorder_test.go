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

package elastiservice_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// awaitLastWake waits until the status of "cart" says for which reason the target was
// last woken.
func (s *server) awaitLastWake(t *testing.T, reason string) *v1alpha1.WakeRecord {
	t.Helper()
	return s.awaitLastWakeOf(t, "cart", reason)
}

func (s *server) awaitLastWakeOf(t *testing.T, name, reason string) *v1alpha1.WakeRecord {
	t.Helper()
	var last *v1alpha1.WakeRecord
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		found, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = found.Status.LastWake
		return last != nil && last.Reason == reason, nil
	})
	if err != nil {
		t.Fatalf("the last wake is %+v, want one because of %q (%v)", last, reason, err)
	}
	return last
}

func requestBecause(reason string) *v1alpha1.WakeRequest {
	request := wakeRequest()
	request.Spec.Reason = reason
	return request
}

func TestWakesAreRecordedInTheStatus(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Wake(t.Context(), "cart", requestBecause("from zero"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if last := s.awaitLastWake(t, "from zero"); last.By == "" || last.Time.IsZero() || last.CancelledSleep {
		t.Errorf("the record is %+v", last)
	}
	// A request for an awake target is no wake, but one for a target with a sleep
	// request is.
	if _, err := services.Wake(t.Context(), "cart", requestBecause("already awake"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Wake(t.Context(), "cart", requestBecause("on its way to zero"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The write that cancels the request has it: there is no moment without both.
	canceled, err := services.Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || canceled.Status.SleepRequestedTime != nil || canceled.Status.LastWake == nil || canceled.Status.LastWake.Reason != "on its way to zero" || !canceled.Status.LastWake.CancelledSleep {
		t.Errorf("right after the wake, the status is %+v (%v)", canceled.Status, err)
	}
}

// The status of an ElastiService that was given another target has no wake of the
// previous one, even if that wake is recorded only then.
func TestWakesOfAPreviousTargetAreNotRecorded(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	for _, name := range []string{"cart", "basket", "bystander"} {
		s.scaler.put(name, 0)
	}
	for _, name := range []string{"cart", "bystander"} {
		if _, err := services.Create(t.Context(), newElastiService(name, name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wake := func(name, reason string) {
		t.Helper()
		if _, err := services.Wake(t.Context(), name, requestBecause(reason), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	moveTo := func(target string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"scaleTargetRef":{"name":%q}}}`, target)
		moved, err := services.Patch(t.Context(), "cart", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if moved.Status.LastWake != nil {
			t.Errorf("the last wake of %s is %+v", target, moved.Status.LastWake)
		}
	}
	wake("cart", "recorded before")
	s.awaitLastWake(t, "recorded before")
	moveTo("basket")
	wake("cart", "recorded after")
	moveTo("cart")
	wake("bystander", "later")
	s.awaitLastWakeOf(t, "bystander", "later")
	found, err := services.Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || found.Status.LastWake != nil {
		t.Errorf("the last wake is %+v (%v), want none of another target", found.Status.LastWake, err)
	}
}

// No record is lost while the storage rejects writes for a moment.
func TestWakesAreRecordedWhenTheStorageAcceptsWritesAgain(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.readOnly.Store(true)
	if _, err := services.Wake(t.Context(), "cart", requestBecause("during the outage"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The record is written a moment after the wake.
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return s.rejected.Load() > 0, nil
	})
	if err != nil {
		t.Fatal("the record was not tried to be written")
	}
	s.readOnly.Store(false)
	s.awaitLastWake(t, "during the outage")
}
