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

package evaluators

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

// State is the state of a trigger. Its values are those of the label "result"
// of metrics.
type State string

const (
	// Idle: the target is not used.
	Idle State = "idle"
	// Active: the target is used.
	Active State = "active"
	// Unknown: it is not known whether the target is used. This never leads to an
	// action.
	Unknown State = "unknown"
)

// Result is the result of evaluating a trigger.
type Result struct {
	State State
	// Reason is one of the reasons of v1alpha1.
	Reason string
	// Message is a sentence for the user. It has no secret, and does not change
	// while the result does not.
	Message string
	// Note is a remark on a trigger that was evaluated: that of its server on the
	// query, or which part of the traffic it does not see. Empty if there is none.
	Note string
}

// Subject is what is evaluated.
type Subject struct {
	ElastiService *v1alpha1.ElastiService
	Trigger       *v1alpha1.ScaleTrigger
	// MaxAge is how old the data that is used may be.
	MaxAge time.Duration
}

// Evaluator evaluates the triggers of one type. It is safe for concurrent use.
type Evaluator interface {
	// Evaluate reports whether the trigger is idle. The only errors are
	// queries.ErrBusy and those of ctx: other failures are part of the result.
	Evaluate(ctx context.Context, subject Subject) (Result, error)
}

// NotSupported is the result of a trigger whose type has no evaluator.
func NotSupported() Result {
	return unknown(v1alpha1.ReasonNotSupported, "triggers of this type cannot be evaluated, so the target is not put to sleep")
}

// compare returns the result of a trigger that compares a value with a
// threshold.
func compare(got queries.Result, threshold float64) Result {
	if got.Value < threshold {
		return Result{State: Idle, Reason: v1alpha1.ReasonBelowThreshold, Message: fmt.Sprintf("below %g", threshold), Note: got.Note}
	}
	return Result{State: Active, Reason: v1alpha1.ReasonThresholdReached, Message: fmt.Sprintf("at least %g", threshold), Note: got.Note}
}

func unknown(reason, message string, args ...any) Result {
	return Result{State: Unknown, Reason: reason, Message: fmt.Sprintf(message, args...)}
}

// failure returns the error of a query that failed for its own sake.
func failure(reason, message string, args ...any) error {
	return &queries.Error{Reason: reason, Message: fmt.Sprintf(message, args...)}
}

// serverFault returns the error of a query whose server would fail any other query as
// well.
func serverFault(message string, args ...any) error {
	return &queries.Error{Reason: v1alpha1.ReasonServerFailed, Message: fmt.Sprintf(message, args...), ServerFault: true}
}

// resultOf returns the result of a trigger whose query failed. queries.ErrBusy
// is not turned into a result.
func resultOf(err error) (Result, error) {
	var failed *queries.Error
	switch {
	case errors.Is(err, queries.ErrBusy):
		return Result{}, err
	case errors.As(err, &failed):
		return unknown(failed.Reason, "%s", failed.Message), nil
	default:
		return unknown(v1alpha1.ReasonServerFailed, "%v", err), nil
	}
}
