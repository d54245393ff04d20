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

package consistency

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	testingclock "k8s.io/utils/clock/testing"
)

// failingStorage fails each write with an error.
type failingStorage struct {
	storage.Interface
	err error
}

func (s failingStorage) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return s.err
}

// A write that timed out may have made a newer version, so that the cache is not
// to be trusted for a while.
func TestCacheIsNotTrustedAfterAWriteOfUnknownOutcome(t *testing.T) {
	resource := schema.GroupResource{Resource: "things"}
	for _, test := range []struct {
		err     error
		unknown bool
	}{
		{err: storage.NewKeyExistsError("key", 0)},
		{err: apierrors.NewForbidden(resource, "cart", errors.New("no"))},
		{err: context.DeadlineExceeded, unknown: true},
		{err: fmt.Errorf("writing: %w", context.Canceled), unknown: true},
		{err: errors.New("etcdserver: request timed out"), unknown: true},
		{err: apierrors.NewTimeoutError("too slow", 1), unknown: true},
		{err: apierrors.NewServerTimeout(resource, "create", 1), unknown: true},
	} {
		clock := testingclock.NewFakePassiveClock(time.Now())
		tracker := &VersionTracker{}
		tracked := trackedStorage{failingStorage{err: test.err}, tracker, clock}
		if err := tracked.Create(t.Context(), "key", objectOf("1"), objectOf("1"), 0); !errors.Is(err, test.err) {
			t.Fatalf("creating failed with %v, want %v", err, test.err)
		}
		if got := !tracker.IsNewest(clock.Now()); got != test.unknown {
			t.Errorf("after %q, the outcome is unknown: %t, want %t", test.err, got, test.unknown)
		}
		clock.SetTime(clock.Now().Add(unknownOutcomePeriod))
		if !tracker.IsNewest(clock.Now()) {
			t.Errorf("after %q, the cache is never trusted again", test.err)
		}
	}
}
