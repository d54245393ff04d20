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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// requestOf returns the request for sleep of the ElastiService called cart.
func requestOf(t *testing.T, s *server) (*metav1.Time, string) {
	t.Helper()
	elastiService, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return elastiService.Status.SleepRequestedTime, elastiService.Status.SleepRequestedBy
}

// A request for sleep is about the target that it was made for, whatever else of the spec
// is edited.
func TestARequestForSleepEndsWithTheTargetThatItIsAbout(t *testing.T) {
	s := startServer(t, nil)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	s.scaler.put("cart", 2)
	if _, err := services.Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	requested, by := requestOf(t, s)
	if requested == nil || by == "" {
		t.Fatalf("sleep was requested at %v by %q", requested, by)
	}
	edit := func(patch string) {
		t.Helper()
		if _, err := services.Patch(t.Context(), "cart", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	edit(`{"spec":{"cooldownPeriod":7200}}`)
	if at, of := requestOf(t, s); !at.Equal(requested) || of != by {
		t.Errorf("after an edit of the cooldown, sleep was requested at %v by %q", at, of)
	}
	edit(`{"spec":{"scaleTargetRef":{"name":"basket"}}}`)
	if at, of := requestOf(t, s); at != nil || of != "" {
		t.Errorf("after a change of the target, sleep was requested at %v by %q", at, of)
	}
}

// What the server decided by itself, it may take back. What a user requests after that is
// the user's.
func TestAUserTakesOverARequestForSleep(t *testing.T) {
	s := startServer(t, nil)
	s.scaler.put("cart", 2)
	created, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	decided := metav1.Unix(1_700_000_000, 0)
	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
		e.Status.SleepRequestedTime, e.Status.SleepRequestedBy = &decided, v1alpha1.CallerServer
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	at, by := requestOf(t, s)
	if !decided.Before(at) || by == v1alpha1.CallerServer {
		t.Errorf("sleep was requested at %v by %q", at, by)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if again, _ := requestOf(t, s); !again.Equal(at) {
		t.Errorf("a request that says nothing new moved the time from %v to %v", at, again)
	}
}

// A request from before a wake does not count. The replica that takes the request may have
// another clock than the one that recorded the wake.
func TestARequestForSleepIsNotBeforeTheWakeThatItFollows(t *testing.T) {
	s := startServer(t, nil)
	s.scaler.put("cart", 2)
	created, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Create(t.Context(), newElastiService("cart", "cart"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	woken := metav1.NewTime(time.Now().Add(30 * time.Second)).Rfc3339Copy()
	if _, err := s.statuses.UpdateStatus(t.Context(), keyOf(created), created.UID, func(e *v1alpha1.ElastiService) error {
		e.Status.LastScaledUpTime = &woken
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := patchScale(t, s, 0); err != nil {
		t.Fatal(err)
	}
	if at, by := requestOf(t, s); !at.Equal(&woken) || by == "" {
		t.Errorf("sleep was requested at %v by %q after a wake at %v", at, by, woken)
	}
}
