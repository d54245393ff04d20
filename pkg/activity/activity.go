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

// Package activity defines how often resolvers report traffic, and for how long the
// server trusts a report.
//
// It knows neither reports nor statuses. Begin with Staleness.
package activity

import "time"

const (
	// MinInterval is the shortest Interval. Each report that says something new is a write
	// of the ElastiService, so they are not more frequent than the cooldown needs.
	MinInterval = time.Second
	// MaxInterval is the longest Interval.
	MaxInterval = 3 * time.Minute
	// missedReports is how many reports in a row may be lost before what was
	// reported last is not trusted any more.
	missedReports = 3
	// delay is how long a report may be under way, and be put off on a busy machine.
	delay = 2 * time.Second
	// MaxResolvers is how many resolvers are remembered for one ElastiService. Of
	// more, those that reported last are kept.
	MaxResolvers = 64
	// ForgetAfter is how old a report is before it is dropped.
	ForgetAfter = 10 * time.Minute
)

// Interval returns the time between two reports of a resolver about an
// ElastiService with a cooldown: a quarter of it, within MinInterval and
// MaxInterval.
func Interval(cooldown time.Duration) time.Duration {
	return min(max(cooldown/4, MinInterval), MaxInterval)
}

// Staleness returns how old a report about an ElastiService with a cooldown may
// be to be trusted. From a cooldown of 8 s on that is no longer than the
// cooldown: a target never sleeps unless every resolver has reported within it.
func Staleness(cooldown time.Duration) time.Duration {
	return missedReports*Interval(cooldown) + delay
}
