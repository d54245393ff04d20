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

// Package schedule reports whether an instant is inside of a recurring period of
// time. Validation and evaluation both go through it, so that what is accepted
// is what is understood.
//
// It has no clock, and does not know what a period is for. Begin with Period.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // An image without files has no time zones of its own.

	"github.com/robfig/cron/v3"
)

// MaxDuration bounds how long one period lasts: longer ones never end, since
// a cron expression starts at least once in a few years.
const MaxDuration = 366 * 24 * time.Hour

// maxExpressionLength bounds a cron expression, in bytes.
const maxExpressionLength = 256

// fields are what a cron expression consists of: minute, hour, day of month,
// month and day of week, or a macro such as @daily.
var fields = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Period is a recurring period of time: it begins at each start of a cron
// schedule and lasts for a duration. Immutable, so safe for concurrent use.
type Period struct {
	starts   cron.Schedule
	duration time.Duration
	location *time.Location
}

// Parse returns the period that begins at each time of the cron expression,
// read in the time zone, and lasts for the duration.
func Parse(expression, duration, timeZone string) (*Period, error) {
	starts, err := ParseExpression(expression)
	if err != nil {
		return nil, err
	}
	length, err := ParseDuration(duration)
	if err != nil {
		return nil, err
	}
	location, err := ParseTimeZone(timeZone)
	if err != nil {
		return nil, err
	}
	return &Period{starts: starts, duration: length, location: location}, nil
}

// ParseExpression reads a cron expression of five fields, or one of the macros
// @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually.
func ParseExpression(expression string) (cron.Schedule, error) {
	switch {
	case len(expression) > maxExpressionLength:
		return nil, fmt.Errorf("a cron expression has at most %d bytes", maxExpressionLength)
	case strings.HasPrefix(expression, "TZ="), strings.HasPrefix(expression, "CRON_TZ="):
		return nil, errors.New("the time zone has a field of its own, timeZone: leave it out of the cron expression")
	case strings.HasPrefix(expression, "@every"):
		return nil, errors.New("@every has no fixed times to start at: use five fields, such as */30 * * * *")
	}
	starts, err := fields.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("not a cron expression of five fields (minute, hour, day of month, month, day of week) or a macro such as @daily: %w", err)
	}
	if starts.Next(time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("never starts: no date fits the day and the month")
	}
	return starts, nil
}

// ParseDuration reads how long a period lasts, such as 8h or 1h30m.
func ParseDuration(duration string) (time.Duration, error) {
	length, err := time.ParseDuration(duration)
	if err != nil {
		return 0, errors.New("not a duration: use hours, minutes and seconds, such as 8h or 1h30m")
	}
	if length < time.Second || length > MaxDuration {
		return 0, fmt.Errorf("must be from 1s to %dh", MaxDuration/time.Hour)
	}
	return length, nil
}

// ParseTimeZone returns the time zone with an IANA name, such as Europe/Berlin
// or UTC.
func ParseTimeZone(name string) (*time.Location, error) {
	// Local is where the server happens to run.
	if name == "" || strings.EqualFold(name, "local") {
		return nil, errors.New("not the IANA name of a time zone: use one such as Europe/Berlin or UTC")
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, errors.New("not the IANA name of a time zone: use one such as Europe/Berlin or UTC")
	}
	return location, nil
}

// Contains reports whether the instant is inside of the period. The start of a
// period belongs to it, its end does not. Periods may overlap.
//
// Both are read off the clock on the wall: a period of 12 hours from 19:00
// ends at 07:00, also in a night in which the clock is put forward or back.
func (p *Period) Contains(instant time.Time) bool {
	now := wallClock(instant.In(p.location))
	// The first start that could still last, and no earlier one.
	start := p.starts.Next(now.Add(-p.duration))
	return !start.IsZero() && !start.After(now)
}

// wallClock returns what the clock on the wall shows, as if it were UTC. Every
// hour exists there, once.
func wallClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}
