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

// Package reports reads the traffic reports of resolvers from the status of an
// ElastiService. All functions are pure.
//
// It knows nothing of triggers. Begin with HasOpen.
package reports

import (
	"slices"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// openTimeout is how long a connection counts as open that a ready resolver has reported as
// such. A resolver whose container was restarted has ended it, and reports nothing while no
// request comes.
const openTimeout = time.Hour

// Cooldown returns the cooldown of an ElastiService.
func Cooldown(elastiService *v1alpha1.ElastiService) time.Duration {
	seconds := v1alpha1.DefaultCooldownPeriod
	if elastiService.Spec.CooldownPeriod != nil {
		seconds = *elastiService.Spec.CooldownPeriod
	}
	return time.Duration(seconds) * time.Second
}

// Staleness returns how old a report about an ElastiService may be to be used.
func Staleness(elastiService *v1alpha1.ElastiService) time.Duration {
	return activity.Staleness(Cooldown(elastiService))
}

// IsFresh reports whether a report is not older than a staleness. The clock of
// another replica of the server, which received it, may be a little ahead.
func IsFresh(reported *v1alpha1.ResolverActivity, staleness time.Duration, now time.Time) bool {
	return now.Sub(reported.ReportTime.Time).Abs() <= staleness
}

// Find returns the report of a resolver, or nil.
func Find(elastiService *v1alpha1.ElastiService, resolver string) *v1alpha1.ResolverActivity {
	for i := range elastiService.Status.Activity {
		if reported := &elastiService.Status.Activity[i]; reported.Resolver == resolver {
			return reported
		}
	}
	return nil
}

// HasOpen reports whether a resolver holds or forwards a request or a
// connection, according to reports that are not stale.
func HasOpen(elastiService *v1alpha1.ElastiService, now time.Time) bool {
	staleness := Staleness(elastiService)
	return slices.ContainsFunc(elastiService.Status.Activity, func(reported v1alpha1.ResolverActivity) bool {
		return reported.Open > 0 && IsFresh(&reported, staleness, now)
	})
}

// MayHaveOpen reports whether a resolver that is ready may still hold or forward what it
// reported last: its reports are late. What a resolver that is not ready any more had
// open has ended with it, or is open elsewhere. A report counts for openTimeout.
func MayHaveOpen(elastiService *v1alpha1.ElastiService, isReady func(resolver string) bool, now time.Time) bool {
	staleness := Staleness(elastiService)
	return slices.ContainsFunc(elastiService.Status.Activity, func(reported v1alpha1.ResolverActivity) bool {
		return reported.Open > 0 && !IsFresh(&reported, staleness, now) && IsFresh(&reported, openTimeout, now) && isReady(reported.Resolver)
	})
}

// LastRequest returns when a resolver last saw a request. Zero if none did.
func LastRequest(elastiService *v1alpha1.ElastiService) time.Time {
	var last time.Time
	for i := range elastiService.Status.Activity {
		if at := elastiService.Status.Activity[i].LastRequestTime; at != nil && at.After(last) {
			last = at.Time
		}
	}
	return last
}
