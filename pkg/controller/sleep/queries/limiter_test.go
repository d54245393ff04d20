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

package queries

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

const testInterval = 30 * time.Second

// hung is the error of a server that does not respond.
var hung = &Error{Reason: "ServerFailed", Message: "did not respond in time", ServerFault: true}

// hang responds when it is closed, and otherwise fails when its context ends.
type hang chan struct{}

func (h hang) send(ctx context.Context) (float64, error) {
	select {
	case <-h:
		return 1, nil
	case <-ctx.Done():
		return 0, hung
	}
}

func TestEqualQueriesAreSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(clock.RealClock{}, 0)
		query := Query{Server: "prometheus", Text: "up"}
		answers := hang(make(chan struct{}))
		count := 0
		ask := func() (float64, error) {
			return limiter.Do(t.Context(), query, testInterval, func(ctx context.Context) (float64, error) {
				count++
				return answers.send(ctx)
			})
		}
		done := make(chan error)
		go func() { _, err := ask(); done <- err }()
		synctest.Wait()
		if _, err := ask(); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v while the question is asked, want %v", err, ErrBusy)
		}
		close(answers)
		if err := <-done; err != nil {
			t.Error(err)
		}
		for range 10 {
			if value, err := ask(); value != 1 || err != nil {
				t.Errorf("got %v, %v, want the answer that is there", value, err)
			}
		}
		if count != 1 {
			t.Errorf("asked %d times, want once", count)
		}
		<-time.After(testInterval)
		if _, err := ask(); err != nil || count != 2 {
			t.Errorf("asked %d times (%v), want again after the interval", count, err)
		}
	})
}

// A server that hangs gets a few queries at a time, then none for a while, and
// other servers get theirs all along.
func TestAServerThatHangsDelaysOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(clock.RealClock{}, 0)
		var asking atomic.Int32
		busy := 0
		done := make(chan error)
		askAll := func(count int, put func(context.Context) (float64, error)) {
			for i := range count {
				go func() {
					_, err := limiter.Do(t.Context(), Query{"hangs", fmt.Sprint(i)}, 0, put)
					done <- err
				}()
			}
		}
		askAll(100, func(ctx context.Context) (float64, error) {
			asking.Add(1)
			<-ctx.Done()
			return 0, hung
		})
		for range 100 - MaxInFlight {
			if err := <-done; errors.Is(err, ErrBusy) {
				busy++
			}
		}
		if asking.Load() != MaxInFlight || busy != 100-MaxInFlight {
			t.Errorf("asks %d questions at once and turns %d away, want %d and the others", asking.Load(), busy, MaxInFlight)
		}
		started := time.Now()
		if _, err := limiter.Do(t.Context(), Query{"answers", "up"}, 0, func(context.Context) (float64, error) { return 1, nil }); err != nil || time.Since(started) != 0 {
			t.Errorf("another server answers after %s with %v, want at once", time.Since(started), err)
		}
		for range MaxInFlight {
			<-done
		}

		var problem *Error
		started = time.Now()
		if _, err := limiter.Do(t.Context(), Query{"hangs", "more"}, 0, nil); !errors.As(err, &problem) || time.Since(started) != 0 {
			t.Errorf("got %v after %s, want the failure at once", err, time.Since(started))
		}
		<-time.After(faultPause)
		answers := hang(make(chan struct{}))
		askAll(2, answers.send)
		if err := <-done; !errors.As(err, &problem) {
			t.Errorf("got %v, want the failure for all but the one who tries", err)
		}
		close(answers)
		if err := <-done; err != nil {
			t.Errorf("got %v from the server that is back", err)
		}
		if _, err := limiter.Do(t.Context(), Query{"hangs", "more"}, 0, answers.send); err != nil {
			t.Errorf("got %v from the server that is back", err)
		}
	})
}

// A query that is too expensive for a server says nothing about others.
func TestAQueryThatHangsDoesNotOpenTheCircuitBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := NewLimiter(clock.RealClock{}, 0)
		for i := range 10 {
			if _, err := limiter.Do(t.Context(), Query{"slow", "expensive"}, 0, hang(nil).send); errors.Is(err, ErrBusy) {
				t.Error(err)
			}
			value, err := limiter.Do(t.Context(), Query{"slow", fmt.Sprint(i)}, 0, func(context.Context) (float64, error) { return 1, nil })
			if value != 1 || err != nil {
				t.Fatalf("got %v, %v after %d questions that hung", value, err, i+1)
			}
		}
	})
}
