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

package options

import (
	"runtime"
	"testing"
	"time"
)

func TestSmallHeapsMayHoldSomeGarbage(t *testing.T) {
	const mebibyte = 1 << 20
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, 25},
		{16 * mebibyte, 400},
		{64 * mebibyte, 100},
		{128 * mebibyte, 50},
		{256 * mebibyte, 25},
		{1024 * mebibyte, 25},
	} {
		if got := percentFor(test.live); got != test.want {
			t.Errorf("with %d MiB in use, got %d percent of garbage, want %d", test.live/mebibyte, got, test.want)
		}
	}
}

func TestEveryCollectionIsNoticed(t *testing.T) {
	noticed := make(chan struct{}, 100)
	afterEachCollection(func() { noticed <- struct{}{} })
	// Once at the beginning, and then after each collection.
	for range 4 {
		select {
		case <-noticed:
		case <-time.After(time.Minute):
			t.Fatal("a collection was not noticed")
		}
		runtime.GC()
	}
	if live := liveBytes(); live == 0 || live > 1<<32 {
		t.Errorf("%d bytes are in use", live)
	}
}
