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

// Package task runs what serves a connection, or works for a service, so that a
// panic ends that connection or that attempt, and not the process.
//
// It knows nothing of what it runs. Begin with Runner.
package task

import (
	"context"
	"errors"
	"runtime/debug"
	"time"
)

// repeatPause is how long Repeat waits after a panic.
const repeatPause = time.Second

// ErrPanicked is returned for a function that panicked. The panic was reported.
var ErrPanicked = errors.New("a panic ended the attempt; the log of the resolver has its stack")

// Panic is a panic that was contained.
type Panic struct {
	// Value is what the function panicked with.
	Value any
	// Stack is the stack of its goroutine.
	Stack []byte
}

// Runner runs functions and contains their panics. It is safe for concurrent
// use. Nil contains nothing: a panic ends the process, as it does in a test.
type Runner struct {
	report func(Panic)
}

// New returns a Runner that calls report for each panic, from the goroutine that
// panicked. Report must not panic.
func New(report func(Panic)) *Runner { return &Runner{report: report} }

// Go calls f in a goroutine of its own, as Run does.
func (r *Runner) Go(abort, f func()) {
	go r.Run(abort, f)
}

// Run calls f. When f panics, Run reports that, calls abort and returns: abort
// ends the connection and gives back what it took. The functions that f
// deferred have run by then. A panic of abort is only reported.
func (r *Runner) Run(abort, f func()) {
	if r == nil {
		f()
		return
	}
	if r.contain(f) && abort != nil {
		r.contain(abort)
	}
}

// Repeat calls f until it returns or ctx ends. When f panics, Repeat reports that,
// and calls it again after a pause.
func (r *Runner) Repeat(ctx context.Context, f func()) {
	if r == nil {
		f()
		return
	}
	for r.contain(f) {
		timer := time.NewTimer(repeatPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// Try calls f and returns its error. When f panics, Try reports that and returns
// ErrPanicked.
func (r *Runner) Try(f func() error) error {
	err := ErrPanicked
	r.Run(nil, func() { err = f() })
	return err
}

// contain calls f and reports whether it panicked.
func (r *Runner) contain(f func()) (panicked bool) {
	defer func() {
		if value := recover(); value != nil {
			panicked = true
			r.report(Panic{Value: value, Stack: debug.Stack()})
		}
	}()
	f()
	return false
}
