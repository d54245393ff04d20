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

package sleep

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// storedStatus is a storage with one ElastiService.
type storedStatus struct{ stored *v1alpha1.ElastiService }

func (s storedStatus) UpdateStatus(_ context.Context, _ types.NamespacedName, _ types.UID, change func(*v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error) {
	return s.stored, change(s.stored)
}

// The server records wakes while the scheduler decides on an older state.
func TestReportsKeepTheLastWake(t *testing.T) {
	wake := func(at time.Time) *v1alpha1.WakeRecord {
		return &v1alpha1.WakeRecord{Time: metav1.NewTime(at), By: "user alice"}
	}
	earlier, later, future := wake(time.Unix(1000, 0)), wake(time.Unix(2000, 0)), wake(time.Now().Add(time.Hour))
	canceled := wake(time.Unix(1000, 0))
	canceled.CancelledSleep = true
	for name, test := range map[string]struct{ stored, reported, want *v1alpha1.WakeRecord }{
		"the stored one of the same second canceled sleep": {canceled, earlier, canceled},
		"a later one than that is reported":                {canceled, later, later},
		"none is reported":                                 {earlier, nil, earlier},
		"an earlier one is reported":                       {later, earlier, later},
		"a later one is reported":                          {earlier, later, later},
		"the stored one is of a clock that was ahead":      {future, later, later},
	} {
		t.Run(name, func(t *testing.T) {
			stored := &v1alpha1.ElastiService{Status: v1alpha1.ElastiServiceStatus{LastWake: test.stored}}
			if err := NewClient(nil, storedStatus{stored}).Report(t.Context(), stored, Report{LastWake: test.reported}); err != nil {
				t.Fatal(err)
			}
			if got := stored.Status.LastWake; !equality.Semantic.DeepEqual(got, test.want) {
				t.Errorf("the last wake is %+v, want %+v", got, test.want)
			}
		})
	}
}
