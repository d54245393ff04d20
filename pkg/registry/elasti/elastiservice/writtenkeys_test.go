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
	"fmt"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

func version(resourceVersion string) *elasti.ElastiService {
	return &elasti.ElastiService{ObjectMeta: metav1.ObjectMeta{ResourceVersion: resourceVersion}}
}

func TestWritesOfOtherKeysAreNotWaitedFor(t *testing.T) {
	written := &writtenKeys{}
	versioner := storage.APIObjectVersioner{}
	if got := written.version("shop/cart"); got != "0" {
		t.Errorf("before any write: %s, want 0", got)
	}
	for _, write := range []struct{ key, version string }{
		{"shop/cart", "5"}, {"shop/till", "9"}, {"shop/cart", "3"}, {"shop/till", ""}, {"shop/desk", "not a version"},
	} {
		written.observe(versioner, write.key, version(write.version))
	}
	for key, want := range map[string]string{"shop/cart": "5", "shop/till": "9", "shop/desk": "0"} {
		if got := written.version(key); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
	}
}

// What is forgotten of a key must not let a reader miss its last write.
func TestForgottenKeysAreReadNoOlderThanTheyWereWritten(t *testing.T) {
	written := &writtenKeys{}
	versioner := storage.APIObjectVersioner{}
	const keys = 3 * maxWrittenKeys
	for i := range keys {
		written.observe(versioner, fmt.Sprint(i), version(strconv.Itoa(i+1)))
		// One that is written again and again is always known.
		written.observe(versioner, "busy", version(strconv.Itoa(i+2)))
	}
	if len(written.newest) > maxWrittenKeys || len(written.order) > maxWrittenKeys {
		t.Errorf("%d keys and %d writes are kept, want at most %d", len(written.newest), len(written.order), maxWrittenKeys)
	}
	for i := range keys {
		got, err := strconv.Atoi(written.version(fmt.Sprint(i)))
		if err != nil || got < i+1 || got > keys {
			t.Fatalf("key %d is read at version %d (error: %v), want from %d", i, got, err, i+1)
		}
	}
	if got := written.version("busy"); got != strconv.Itoa(keys+1) {
		t.Errorf("the busy key is read at %s, want %d", got, keys+1)
	}
	if got := written.version("never written"); got == strconv.Itoa(keys+1) {
		t.Errorf("a key that was never written waits for the newest write")
	}
}
