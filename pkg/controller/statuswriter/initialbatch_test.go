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

package statuswriter

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// runInitialBatch returns batch that run until the end of the test, and what
// has admitted. It belongs to a bubble.
func runInitialBatch(t *testing.T) (*initialBatch, chan types.NamespacedName) {
	t.Helper()
	admitted := make(chan types.NamespacedName, 10_000)
	batch := newInitialBatch(clock.RealClock{}, func(key types.NamespacedName) { admitted <- key })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		batch.run(t.Context())
	}()
	t.Cleanup(func() { <-ended })
	return batch, admitted
}

func numbered(number int) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: strconv.Itoa(number)}
}

func TestFewInitialStatusesAreAdmittedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batch, admitted := runInitialBatch(t)
		for number := range firstStatusesAtOnce {
			batch.add(numbered(number))
		}
		if len(admitted) != firstStatusesAtOnce {
			t.Errorf("%d of %d admitted at once", len(admitted), firstStatusesAtOnce)
		}
	})
}

func TestManyInitialStatusesAreAdmittedSlowlyUntilNoMoreCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batch, admitted := runInitialBatch(t)
		const seconds, eachSecond = 5, 100
		for number := range seconds * eachSecond {
			batch.add(numbered(number))
			<-time.After(time.Second / eachSecond)
		}
		synctest.Wait()
		if most := firstStatusesAtOnce + seconds*firstStatusesPerSecond; len(admitted) > most || len(admitted) < most*9/10 {
			t.Errorf("%d admitted while others came, want at most %d and not many less", len(admitted), most)
		}
		<-time.After(2 * quietPeriod)
		synctest.Wait()
		if len(admitted) != seconds*eachSecond {
			t.Errorf("%d of %d admitted when no more came", len(admitted), seconds*eachSecond)
		}
		for number := range seconds * eachSecond {
			if key := <-admitted; key != numbered(number) {
				t.Fatalf("number %d is %s: they do not pass in the order in which they came", number, key)
			}
		}
	})
}

func TestInitialStatusThatComesAgainIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batch, admitted := runInitialBatch(t)
		for number := range firstStatusesAtOnce + 1 {
			batch.add(numbered(number))
		}
		last := numbered(firstStatusesAtOnce)
		batch.add(last)
		if !batch.has(last) {
			t.Error("the last one does not wait")
		}
		<-time.After(2 * quietPeriod)
		synctest.Wait()
		if len(admitted) != firstStatusesAtOnce+1 || batch.has(last) {
			t.Errorf("%d admitted, want %d", len(admitted), firstStatusesAtOnce+1)
		}
	})
}

// A client that goes on creating ElastiServices delays the first statuses of its own
// namespace only.
func TestInitialStatusesOfEachNamespaceHaveTheirTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		batch, admitted := runInitialBatch(t)
		cart := types.NamespacedName{Namespace: "bank", Name: "cart"}
		const before, after = 1000, 50
		for number := range before + after {
			if number == before {
				batch.add(cart)
			}
			batch.add(numbered(number))
			<-time.After(quietPeriod / 10)
		}
		synctest.Wait()
		if batch.has(cart) {
			t.Errorf("%d of one namespace were admitted, and the one of another waits", len(admitted))
		}
	})
}
