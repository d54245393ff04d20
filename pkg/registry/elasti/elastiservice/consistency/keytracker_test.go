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
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

func objectOf(resourceVersion string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: resourceVersion}}
}

func TestKeyTrackerKeepsTheNewestVersionOfEachKey(t *testing.T) {
	tracker := &KeyTracker{}
	versioner := storage.APIObjectVersioner{}
	if got := tracker.ResourceVersion("shop/cart"); got != "0" {
		t.Errorf("before any write: %s, want 0", got)
	}
	for _, write := range []struct{ key, version string }{
		{"shop/cart", "5"}, {"shop/till", "9"}, {"shop/cart", "3"}, {"shop/till", ""}, {"shop/desk", "not a version"},
	} {
		tracker.Observe(versioner, write.key, objectOf(write.version))
	}
	for key, want := range map[string]string{"shop/cart": "5", "shop/till": "9", "shop/desk": "0"} {
		if got := tracker.ResourceVersion(key); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// A key that is evicted must not let a read miss its last write.
func TestEvictedKeysAreReadNoOlderThanTheyWereWritten(t *testing.T) {
	tracker := &KeyTracker{}
	versioner := storage.APIObjectVersioner{}
	const keys = 3 * maxTrackedKeys
	for i := range keys {
		tracker.Observe(versioner, fmt.Sprint(i), objectOf(strconv.Itoa(i+1)))
		// A key that is written again and again is never evicted.
		tracker.Observe(versioner, "busy", objectOf(strconv.Itoa(i+2)))
	}
	if len(tracker.newest) > maxTrackedKeys || len(tracker.writes) > maxTrackedKeys {
		t.Errorf("%d keys and %d writes are kept, want at most %d", len(tracker.newest), len(tracker.writes), maxTrackedKeys)
	}
	for i := range keys {
		got, err := strconv.Atoi(tracker.ResourceVersion(fmt.Sprint(i)))
		if err != nil || got < i+1 || got > keys {
			t.Fatalf("key %d is read at version %d (error: %v), want from %d", i, got, err, i+1)
		}
	}
	if got := tracker.ResourceVersion("busy"); got != strconv.Itoa(keys+1) {
		t.Errorf("the busy key is read at %s, want %d", got, keys+1)
	}
	if got := tracker.ResourceVersion("never written"); got == strconv.Itoa(keys+1) {
		t.Errorf("a key that was never written waits for the newest write")
	}
}

func TestVersionsThatARestoredStoreHasNotReachedAreLowered(t *testing.T) {
	tracker := &KeyTracker{}
	versioner := storage.APIObjectVersioner{}
	for i := range 2 * maxTrackedKeys {
		tracker.Observe(versioner, fmt.Sprint(i), objectOf("9000"))
	}
	tracker.Observe(versioner, "before", objectOf("4000"))
	tracker.Observe(versioner, "after", objectOf("10000"))
	tracker.Lower(5000)
	tracker.Observe(versioner, "again", objectOf("5001"))
	for key, want := range map[string]string{"before": "4000", "after": "5000", "0": "5000", "again": "5001"} {
		if got := tracker.ResourceVersion(key); got != want {
			t.Errorf("%s is read at version %s, want %s", key, got, want)
		}
	}
	// The eviction of what was lowered raises nothing.
	for i := range maxTrackedKeys {
		tracker.Observe(versioner, fmt.Sprint("new-", i), objectOf(strconv.Itoa(5002+i)))
	}
	if got := tracker.ResourceVersion("after"); got != "5001" {
		t.Errorf("an evicted key is read at version %s, want 5001", got)
	}
}
