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
	"errors"
	"fmt"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Verdict is what a trigger says of its target. Its values are those of the
// label "result" of metrics.
type Verdict string

const (
	// Idle: the target is not used.
	Idle Verdict = "idle"
	// Active: the target is used.
	Active Verdict = "active"
	// Unknown: there is no telling. It never leads to an action.
	Unknown Verdict = "unknown"
)

// Result is what came of evaluating a trigger.
type Result struct {
	Verdict Verdict
	// Reason is one of the reasons of v1alpha1.
	Reason string
	// Message is a sentence for the user. It holds no secret, and is the same
	// as long as nothing changes.
	Message string
}

// Subject is what is evaluated.
type Subject struct {
	ElastiService *v1alpha1.ElastiService
	Trigger       *v1alpha1.ScaleTrigger
	// MaxAge is how old the data that is looked at may be.
	MaxAge time.Duration
}

// Evaluator evaluates the triggers of one type. Safe for concurrent use.
type Evaluator interface {
	// Evaluate tells whether the trigger is idle. The only error is ErrBusy:
	// whatever keeps it from telling is part of the result.
	Evaluate(ctx context.Context, subject Subject) (Result, error)
}

// ErrBusy means that the one who is to be asked has enough to do, or is being
// asked the same already: try again a little later.
var ErrBusy = errors.New("busy, try again later")

// compare returns the result of a trigger that looks whether a value is below a
// threshold.
func compare(value, threshold float64) Result {
	if value < threshold {
		return Result{Idle, v1alpha1.ReasonBelowThreshold, fmt.Sprintf("below %g", threshold)}
	}
	return Result{Active, v1alpha1.ReasonThresholdReached, fmt.Sprintf("at least %g", threshold)}
}

func unknownBecause(reason, message string, args ...any) Result {
	return Result{Unknown, reason, fmt.Sprintf(message, args...)}
}

// answerError says why there is no answer.
type answerError struct {
	// Result is what a trigger says for that.
	Result
	// serverFault is true when another question would have met the same.
	serverFault bool
}

func (e *answerError) Error() string { return e.Message }

func noAnswer(reason, message string, args ...any) error {
	return &answerError{Result: unknownBecause(reason, message, args...)}
}

func serverFault(message string, args ...any) error {
	return &answerError{Result: unknownBecause(v1alpha1.ReasonServerFailed, message, args...), serverFault: true}
}

// resultOf returns what a trigger says when there is no answer. ErrBusy is not
// turned into a result.
func resultOf(err error) (Result, error) {
	var known *answerError
	switch {
	case errors.Is(err, ErrBusy):
		return Result{}, err
	case errors.As(err, &known):
		return known.Result, nil
	default:
		return unknownBecause(v1alpha1.ReasonServerFailed, "%v", err), nil
	}
}
