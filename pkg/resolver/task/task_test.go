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

package task

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPanicIsContained(t *testing.T) {
	var reports []Panic
	r := New(func(p Panic) { reports = append(reports, p) })
	var order []string
	note := func(what string) { order = append(order, what) }
	var released sync.WaitGroup
	released.Add(1)
	r.Go(func() { note("abort"); released.Done() }, func() {
		defer note("deferred")
		panicsHere()
	})
	released.Wait()
	if got := fmt.Sprint(order); got != "[deferred abort]" {
		t.Errorf("the order is %s", got)
	}
	if len(reports) != 1 || reports[0].Value != "broken" || !strings.Contains(string(reports[0].Stack), "panicsHere") {
		t.Errorf("the reports are %+v", reports)
	}
}

func panicsHere() { panic("broken") }

func TestAbortOnlyAfterAPanic(t *testing.T) {
	r := New(func(p Panic) { t.Errorf("reported %+v", p) })
	ran := false
	r.Run(func() { t.Error("aborted") }, func() { ran = true })
	if !ran {
		t.Error("the function did not run")
	}
}

func TestPanicOfAbortIsContained(t *testing.T) {
	var values []any
	r := New(func(p Panic) { values = append(values, p.Value) })
	r.Run(func() { panic("second") }, func() { panic("first") })
	if got := fmt.Sprint(values); got != "[first second]" {
		t.Errorf("reported %s", got)
	}
}

func TestNilContainsNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was contained")
		}
	}()
	var r *Runner
	r.Run(nil, func() { panic("broken") })
}

func TestAPanicFailsOneAttempt(t *testing.T) {
	reports := 0
	r := New(func(Panic) { reports++ })
	failure := errors.New("failure")
	if err := r.Try(func() error { return failure }); !errors.Is(err, failure) {
		t.Errorf("the error is %v", err)
	}
	if err := r.Try(func() error { panic("broken") }); !errors.Is(err, ErrPanicked) || reports != 1 {
		t.Errorf("the error is %v, %d reports", err, reports)
	}
}

func TestWhatPanicsIsRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports, runs int
		r := New(func(Panic) { reports++ })
		began := time.Now()
		r.Repeat(t.Context(), func() {
			if runs++; runs < 3 {
				panic("broken")
			}
		})
		if took := time.Since(began); runs != 3 || reports != 2 || took != 2*repeatPause {
			t.Errorf("%d runs, %d reports in %s", runs, reports, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r.Repeat(ctx, func() { cancel(); panic("broken") })
		if took := time.Since(began); took != 2*repeatPause {
			t.Errorf("it ended after %s", took)
		}
	})
}
