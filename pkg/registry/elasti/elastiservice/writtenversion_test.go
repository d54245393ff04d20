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

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// failingStorage fails each write with an error.
type failingStorage struct {
	storage.Interface
	err error
}

func (s failingStorage) Create(context.Context, string, runtime.Object, runtime.Object, uint64) error {
	return s.err
}

// After a time-out nobody knows whether there is a newer version, so that the
// watch cache does not do for a while.
func TestWritesOfUnknownOutcomeKeepReadersFromTheCache(t *testing.T) {
	resource := schema.GroupResource{Resource: "elastiservices"}
	for _, test := range []struct {
		err   error
		doubt bool
	}{
		{err: storage.NewKeyExistsError("key", 0)},
		{err: apierrors.NewForbidden(resource, "cart", errors.New("no"))},
		{err: context.DeadlineExceeded, doubt: true},
		{err: fmt.Errorf("writing: %w", context.Canceled), doubt: true},
		{err: errors.New("etcdserver: request timed out"), doubt: true},
		{err: apierrors.NewTimeoutError("too slow", 1), doubt: true},
		{err: apierrors.NewServerTimeout(resource, "create", 1), doubt: true},
	} {
		clock := testingclock.NewFakePassiveClock(time.Now())
		newest := &writtenVersion{}
		writes := confirmedWrites{failingStorage{err: test.err}, newest, clock}
		if err := writes.Create(t.Context(), "key", &elasti.ElastiService{}, &elasti.ElastiService{}, 0); !errors.Is(err, test.err) {
			t.Fatalf("creating failed with %v, want %v", err, test.err)
		}
		if newest.isNewest(clock.Now()) == test.doubt {
			t.Errorf("after %q, doubt is %t", test.err, !test.doubt)
		}
		clock.SetTime(clock.Now().Add(doubtTime))
		if !newest.isNewest(clock.Now()) {
			t.Errorf("the doubt after %q never ends", test.err)
		}
	}
}
