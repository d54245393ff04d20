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
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// runNewcomers returns newcomers that run until the end of the test, and what
// has passed. It belongs to a bubble.
func runNewcomers(t *testing.T) (*newcomers, chan types.NamespacedName) {
	t.Helper()
	passed := make(chan types.NamespacedName, 10_000)
	newcomers := newNewcomers(clock.RealClock{}, func(key types.NamespacedName) { passed <- key })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		newcomers.run(t.Context())
	}()
	t.Cleanup(func() { <-ended })
	return newcomers, passed
}

func newcomer(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: shop, Name: strconv.Itoa(number)}
}

func TestFewNewcomersPassAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		newcomers, passed := runNewcomers(t)
		for number := range firstStatusesAtOnce {
			newcomers.add(newcomer(number))
		}
		if len(passed) != firstStatusesAtOnce {
			t.Errorf("%d of %d passed at once", len(passed), firstStatusesAtOnce)
		}
	})
}

func TestManyNewcomersPassSlowlyUntilNoMoreCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		newcomers, passed := runNewcomers(t)
		const seconds, eachSecond = 5, 100
		for number := range seconds * eachSecond {
			newcomers.add(newcomer(number))
			<-time.After(time.Second / eachSecond)
		}
		synctest.Wait()
		if most := firstStatusesAtOnce + seconds*firstStatusesPerSecond; len(passed) > most || len(passed) < most*9/10 {
			t.Errorf("%d passed while others came, want at most %d and not many less", len(passed), most)
		}
		<-time.After(2 * calm)
		synctest.Wait()
		if len(passed) != seconds*eachSecond {
			t.Errorf("%d of %d passed when no more came", len(passed), seconds*eachSecond)
		}
		for number := range seconds * eachSecond {
			if key := <-passed; key != newcomer(number) {
				t.Fatalf("number %d is %s: they do not pass in the order in which they came", number, key)
			}
		}
	})
}

func TestNewcomerThatComesAgainPassesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		newcomers, passed := runNewcomers(t)
		for number := range firstStatusesAtOnce + 1 {
			newcomers.add(newcomer(number))
		}
		last := newcomer(firstStatusesAtOnce)
		newcomers.add(last)
		if !newcomers.has(last) {
			t.Error("the last one does not wait")
		}
		<-time.After(2 * calm)
		synctest.Wait()
		if len(passed) != firstStatusesAtOnce+1 || newcomers.has(last) {
			t.Errorf("%d passed, want %d", len(passed), firstStatusesAtOnce+1)
		}
	})
}
