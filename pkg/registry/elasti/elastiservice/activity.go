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
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/validation"
)

const (
	// activityResolution is by how much times must differ to be worth a write:
	// a report that is repeated comes out a little different each time.
	activityResolution = time.Second
)

// ActivityREST is the activity subresource: creating an ActivityReport records
// what is new in it in the status. Any replica of the server can serve it.
type ActivityREST struct {
	elastiServices *genericregistry.Store
	statuses       *genericregistry.Store
	clock          clock.PassiveClock
}

var _ rest.NamedCreater = &ActivityREST{}

// New returns an empty ActivityReport.
func (*ActivityREST) New() runtime.Object { return &elasti.ActivityReport{} }

// Destroy does nothing: the store belongs to REST.
func (*ActivityREST) Destroy() {}

// Create records what a resolver reports about the ElastiService called name, and
// returns the report: a caller that may only create activity reports learns
// nothing about the ElastiService. A report without anything new is not written.
func (r *ActivityREST) Create(ctx context.Context, name string, obj runtime.Object, createValidation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	report, ok := obj.(*elasti.ActivityReport)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the activity subresource takes an ActivityReport, got %T", obj))
	}
	if report.Name != "" && report.Name != name {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metadata.name is %q, but the report is for %q: leave it out or make them equal", report.Name, name))
	}
	report.Name = name
	report.Namespace = genericapirequest.NamespaceValue(ctx)
	if errs := validation.ValidateActivityReport(report); len(errs) > 0 {
		return nil, apierrors.NewInvalid(elasti.Kind("ActivityReport"), name, errs)
	}
	if createValidation != nil {
		if err := createValidation(ctx, report.DeepCopyObject()); err != nil {
			return nil, err
		}
	}

	now := r.clock.Now()
	entry := reportedActivity(report, now)
	if err := r.record(ctx, name, entry, now, options); err != nil {
		return nil, err
	}
	// The report is not stored, so its fields have no owner.
	report.ManagedFields = nil
	report.CreationTimestamp = metav1.NewTime(now)
	return report, nil
}

// record makes an entry part of the status, if it is worth a write.
func (r *ActivityREST) record(ctx context.Context, name string, entry elasti.ResolverActivity, now time.Time, options *metav1.CreateOptions) error {
	// The watch cache shows of most reports that they have nothing new. A cache
	// that is behind costs a read of the storage, which then writes nothing either.
	cached, err := r.elastiServices.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	if err == nil && !hasChanged(cached.(*elasti.ElastiService), entry) {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	var dryRun []string
	if options != nil {
		dryRun = options.DryRun
	}
	change := func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
		elastiService := stored.DeepCopyObject().(*elasti.ElastiService)
		if hasChanged(elastiService, entry) {
			recordActivity(&elastiService.Status, entry, now)
		}
		return elastiService, nil
	}
	_, _, err = r.statuses.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, change),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
	return err
}

// reportedActivity turns the ages of a report into times of this server.
func reportedActivity(report *elasti.ActivityReport, now time.Time) elasti.ResolverActivity {
	ago := func(milliseconds int64) metav1.MicroTime {
		return metav1.NewMicroTime(now.Add(-time.Duration(milliseconds) * time.Millisecond).Truncate(time.Microsecond))
	}
	entry := elasti.ResolverActivity{
		Resolver:      report.Spec.Resolver,
		ReportTime:    ago(0),
		ObservedSince: ago(report.Spec.ObservedMilliseconds),
		Open:          report.Spec.Open,
	}
	if age := report.Spec.LastRequestAgeMilliseconds; age != nil {
		last := ago(*age)
		entry.LastRequestTime = &last
	}
	return entry
}

// hasChanged reports whether an entry differs from what the status has of its
// resolver by enough to be written.
func hasChanged(elastiService *elasti.ElastiService, entry elasti.ResolverActivity) bool {
	if !elastiService.DeletionTimestamp.IsZero() {
		return false
	}
	i := slices.IndexFunc(elastiService.Status.Activity, func(known elasti.ResolverActivity) bool { return known.Resolver == entry.Resolver })
	if i < 0 {
		return true
	}
	known := &elastiService.Status.Activity[i]
	if entry.ReportTime.Time.Before(known.ReportTime.Time) && known.ReportTime.Sub(entry.ReportTime.Time) < activity.ForgetAfter {
		// A newer report was recorded first. An entry from much later than now was
		// written by a clock that has been corrected since.
		return false
	}
	return (known.Open > 0) != (entry.Open > 0) ||
		differ(known.ObservedSince.Time, entry.ObservedSince.Time, activityResolution) ||
		differ(timeOf(known.LastRequestTime), timeOf(entry.LastRequestTime), activityResolution) ||
		differ(known.ReportTime.Time, entry.ReportTime.Time, activity.Interval(cooldownOf(elastiService))/2)
}

// recordActivity replaces the entry of a resolver, drops those that are too old,
// and moves the time of the last activity on.
func recordActivity(status *elasti.ElastiServiceStatus, entry elasti.ResolverActivity, now time.Time) {
	kept := []elasti.ResolverActivity{entry}
	for _, known := range status.Activity {
		switch {
		case known.Resolver == entry.Resolver:
			if !differ(known.ObservedSince.Time, entry.ObservedSince.Time, activityResolution) {
				// The same resolver: only the ages are not exact.
				kept[0].ObservedSince = known.ObservedSince
			}
		case !differ(now, known.ReportTime.Time, activity.ForgetAfter):
			kept = append(kept, known)
		}
	}
	slices.SortStableFunc(kept, func(one, other elasti.ResolverActivity) int {
		return other.ReportTime.Compare(one.ReportTime.Time)
	})
	kept = kept[:min(len(kept), activity.MaxResolvers)]
	slices.SortFunc(kept, func(one, other elasti.ResolverActivity) int {
		if one.Resolver < other.Resolver {
			return -1
		}
		return 1
	})
	status.Activity = kept

	last := timeOf(entry.LastRequestTime)
	if entry.Open > 0 {
		last = now
	}
	known := status.LastActivityTime
	if !last.IsZero() && (known == nil || last.After(known.Time) || known.After(now)) {
		// A time in the future was written by a clock that has been corrected since.
		moved := metav1.NewTime(last).Rfc3339Copy()
		status.LastActivityTime = &moved
	}
}

// differ reports whether two times are at least this far apart.
func differ(one, other time.Time, by time.Duration) bool { return one.Sub(other).Abs() >= by }

func timeOf(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func cooldownOf(elastiService *elasti.ElastiService) time.Duration {
	return time.Duration(*elastiService.Spec.CooldownPeriod) * time.Second
}
