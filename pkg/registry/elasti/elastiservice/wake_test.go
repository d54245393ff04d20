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
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func wakeRequest() *v1alpha1.WakeRequest {
	return &v1alpha1.WakeRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
}

func TestWakeScalesOnceAndSaysSo(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dryRun, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	if !dryRun.Status.Scaled || len(s.events.recorded()) != 0 {
		t.Errorf("a dry run: got %+v and the Events %v, want what it would do and no Event", dryRun.Status, s.events.recorded())
	}
	for i, scaled := range []bool{true, false} {
		response, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if response.Status.Scaled != scaled || response.Status.Replicas != 1 {
			t.Errorf("wake %d: got %+v, want 1 replica and scaled=%v", i, response.Status, scaled)
		}
	}
	if got, want := s.events.recorded(), []string{v1alpha1.ReasonWoken}; !slices.Equal(got, want) {
		t.Errorf("got the Events %v, want %v", got, want)
	}
}

func TestErrorsOfWakesSayWhatToCorrect(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	if _, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing ElastiService: got %v, want not found", err)
	}
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	_, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{})
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		t.Fatalf("a missing target: got %v, want not found", err)
	}
	if details := status.Status().Details; details == nil || details.Group != "apps" || details.Kind != "Deployment" || details.Name != "cart" {
		t.Errorf("a missing target: got the details %+v, want them to name the Deployment", details)
	}

	s.scaler.failWith = apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments/scale"}, "cart",
		errors.New(`User "system:serviceaccount:elasti-system:elasti-apiserver" cannot update resource "deployments/scale"`))
	_, err = services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), `cannot update resource "deployments/scale"`) {
		t.Errorf("no permission: got %v, want a 500 that names the permission", err)
	}
}

func TestWakeOfAnotherNameIsRejected(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request := wakeRequest()
	request.Name = "checkout"
	if _, err := services.Wake(t.Context(), "cart", request, metav1.CreateOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want a bad request", err)
	}
	zero := int32(0)
	request = wakeRequest()
	request.Spec.Replicas = &zero
	if _, err := services.Wake(t.Context(), "cart", request, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a wake to 0: got %v, want invalid", err)
	}
}

// The request for sleep is canceled after the target was scaled, so that a
// storage that rejects writes does not stop a wake.
func TestAWakeNeedsNoWriteToTheStorage(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 1)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	// The controller has scaled it to zero, and could not record that.
	s.scaler.put("cart", 0)
	s.readOnly.Store(true)
	response, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{})
	if err != nil || !response.Status.Scaled || response.Status.Replicas != 1 {
		t.Errorf("a wake returns %+v (%v) while the storage rejects writes, want 1 replica, scaled", response, err)
	}
	if target, err := s.scaler.Get(t.Context(), deployment("cart")); err != nil || target.Spec.Replicas != 1 {
		t.Errorf("the target is at %+v (%v), want 1", target, err)
	}
	s.readOnly.Store(false)
	if _, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if isSleepRequested(t, s) {
		t.Error("the request for sleep was not canceled when the storage accepted writes again")
	}
}

// The watch cache has failed and waits for the storage.
func TestAWakeNeedsNoStorageToReadFrom(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 0)
	created, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Another one of the target, whose request for sleep may have to be canceled.
	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
		e.Status.TargetSharedWith = []string{"other"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.away.Store(true)
	var response *v1alpha1.WakeRequest
	// The last known objects include it soon after it was created.
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		// A client whose wake gets no response wakes again.
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		var err error
		response, err = services.Wake(ctx, "cart", wakeRequest(), metav1.CreateOptions{})
		return err == nil, nil
	})
	if err != nil || !response.Status.Scaled || response.Status.Replicas != 1 {
		t.Errorf("a wake returns %+v (%v) while the storage cannot be read, want 1 replica, scaled", response, err)
	}
	if _, err := services.Wake(t.Context(), "unknown", wakeRequest(), metav1.CreateOptions{}); !apierrors.IsTimeout(err) {
		t.Errorf("a wake of an unknown ElastiService returns %v while the storage cannot be read, want a timeout", err)
	}
}

// The controller may carry out the request between the two steps of a wake.
func TestATargetIsAwakeAfterAWakeDuringItsScaleDown(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 2)
	created, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	s.scaler.afterWake = func() {
		s.scaler.put("cart", 0)
		if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
			e.Status.SleepRequestedTime = nil
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	response, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{})
	if err != nil || !response.Status.Scaled || response.Status.Replicas != 1 {
		t.Errorf("got %+v (%v), want the target scaled again", response, err)
	}
	if target, err := s.scaler.Get(t.Context(), deployment("cart")); err != nil || target.Spec.Replicas != 1 {
		t.Errorf("the target is at %+v (%v), want 1", target, err)
	}
}

// What names another target by now has a request of its own.
func TestAWakeLeavesTheRequestForSleepOfAnotherTarget(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 2)
	s.scaler.put("basket", 2)
	created, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved, err := services.Create(t.Context(), newElastiService("basket", "basket"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	for _, update := range []struct {
		of     *v1alpha1.ElastiService
		change func(*v1alpha1.ElastiService) error
	}{
		{created, func(e *v1alpha1.ElastiService) error { e.Status.TargetSharedWith = []string{"basket"}; return nil }},
		{moved, func(e *v1alpha1.ElastiService) error { e.Status.SleepRequestedTime = &now; return nil }},
	} {
		if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(update.of), update.of.UID, update.change); err != nil {
			t.Fatal(err)
		}
	}
	// The watch cache has both then.
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Wake(t.Context(), "cart", wakeRequest(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cart, err := services.Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || cart.Status.SleepRequestedTime != nil {
		t.Fatalf("the request of cart is left: %+v (%v)", cart.Status, err)
	}
	basket, err := services.Get(t.Context(), "basket", metav1.GetOptions{})
	if err != nil || basket.Status.SleepRequestedTime == nil || basket.Status.LastWake != nil {
		t.Errorf("the status of the other target is %+v (%v)", basket.Status, err)
	}
}

// A target has one sleep, whichever of its ElastiServices it was requested through.
func TestAWakeCancelsTheSleepThatAnotherElastiServiceOfTheTargetRequested(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 2)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := newElastiService("cart-grpc", "cart-grpc")
	other.Spec.ScaleTargetRef.Name = "cart"
	created, err := services.Create(t.Context(), other, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
		e.Status.TargetSharedWith = []string{"cart", "deleted"}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := services.Wake(t.Context(), "cart-grpc", requestBecause("called by gRPC"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cart, err := services.Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil || cart.Status.SleepRequestedTime != nil {
		t.Errorf("the other one still has a sleep request: %+v (%v)", cart.Status, err)
	}
	// Both say what woke their target.
	for _, name := range []string{"cart", "cart-grpc"} {
		if last := s.awaitLastWakeOf(t, name, "called by gRPC"); last.CancelledSleep != (name == "cart") {
			t.Errorf("the last wake of %s is %+v", name, last)
		}
	}
}
