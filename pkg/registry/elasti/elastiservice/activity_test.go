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

package elastiservice_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func activityReport(resolver string, open int32, observed time.Duration, lastRequestAge *time.Duration) *v1alpha1.ActivityReport {
	report := &v1alpha1.ActivityReport{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec:       v1alpha1.ActivityReportSpec{Resolver: resolver, Open: open, ObservedMilliseconds: observed.Milliseconds()},
	}
	if lastRequestAge != nil {
		report.Spec.LastRequestAgeMilliseconds = ptr.To(lastRequestAge.Milliseconds())
	}
	return report
}

// reporting is a server with one ElastiService.
type reporting struct {
	*testing.T
	*server
}

func startReporting(t *testing.T) *reporting {
	t.Helper()
	s := &reporting{t, startServer(t, nil)}
	elastiService := newElastiService("cart", "cart")
	elastiService.Spec.CooldownPeriod = ptr.To[int32](40)
	if _, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Create(t.Context(), elastiService, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *reporting) report(report *v1alpha1.ActivityReport) {
	s.Helper()
	if _, err := s.client.ElastiV1alpha1().ElastiServices(namespace).ReportActivity(s.Context(), "cart", report, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

func (s *reporting) get() *v1alpha1.ElastiService {
	s.Helper()
	elastiService, err := s.client.ElastiV1alpha1().ElastiServices(namespace).Get(s.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return elastiService
}

// updateStatus changes the status as the controller does.
func (s *reporting) updateStatus(change func(*v1alpha1.ElastiServiceStatus)) {
	s.Helper()
	stored := s.get()
	if _, err := s.statuses.UpdateStatus(s.Context(), keyOf(stored), stored.UID, func(e *v1alpha1.ElastiService) error {
		change(&e.Status)
		return nil
	}); err != nil {
		s.Fatal(err)
	}
}

func TestReportsOfActivityEndUpInTheStatus(t *testing.T) {
	s := startReporting(t)
	s.report(activityReport("resolver-a", 0, time.Hour, nil))
	if status := s.get().Status; len(status.Activity) != 1 || status.LastActivityTime != nil || status.Activity[0].LastRequestTime != nil {
		t.Errorf("a resolver that has seen nothing: got %+v", status)
	}
	age := 5 * time.Second
	s.report(activityReport("resolver-b", 0, time.Minute, &age))
	status := s.get().Status
	if len(status.Activity) != 2 || status.Activity[0].Resolver != "resolver-a" || status.Activity[1].Resolver != "resolver-b" {
		t.Fatalf("got %+v, want an entry for each resolver", status.Activity)
	}
	entry := status.Activity[1]
	if ago := time.Since(entry.LastRequestTime.Time); ago < age || ago > age+10*time.Second {
		t.Errorf("the last request was %s ago, want about %s", ago, age)
	}
	if since := entry.ReportTime.Sub(entry.ObservedSince.Time); since != time.Minute {
		t.Errorf("the resolver has observed for %s, want a minute", since)
	}
	if off := status.LastActivityTime.Sub(entry.LastRequestTime.Time).Abs(); off > time.Second {
		t.Errorf("lastActivityTime is %s beside the last request", off)
	}

	// What is open is activity now.
	s.report(activityReport("resolver-b", 3, time.Minute, &age))
	if open := s.get().Status; open.Activity[1].Open != 3 || time.Since(open.LastActivityTime.Time) > 10*time.Second || !status.LastActivityTime.Before(open.LastActivityTime) {
		t.Errorf("with open connections: got %+v", open)
	}

	// Another process in the same pod: the connections of the previous one are closed.
	s.report(activityReport("resolver-b", 0, time.Second, nil))
	restarted := s.get().Status
	if entry := restarted.Activity[1]; entry.Open != 0 || entry.LastRequestTime != nil || len(restarted.Activity) != 2 {
		t.Errorf("after a restart: got %+v", restarted.Activity)
	}
}

func TestLastActivityNeverGoesBack(t *testing.T) {
	s := startReporting(t)
	age, older := time.Second, time.Minute
	s.report(activityReport("resolver-a", 0, time.Hour, &age))
	last := s.get().Status.LastActivityTime
	s.report(activityReport("resolver-b", 0, time.Hour, &older))
	if got := s.get().Status.LastActivityTime; got.Before(last) {
		t.Errorf("an older request on another resolver moved it from %s to %s", last, got)
	}
	for name, earlier := range map[string]*metav1.Time{"earlier": {Time: last.Add(-time.Hour)}, "none": nil} {
		s.updateStatus(func(status *v1alpha1.ElastiServiceStatus) { status.LastActivityTime = earlier })
		if got := s.get().Status; got.LastActivityTime == nil || got.LastActivityTime.Before(last) || len(got.Activity) != 2 {
			t.Errorf("%s: a write of the status left %+v", name, got)
		}
	}
}

func TestReportsOfNothingNewAreNotWritten(t *testing.T) {
	s := startReporting(t)
	observed, age := time.Hour, 30*time.Second
	begun := time.Now()
	s.report(activityReport("resolver-a", 0, observed, &age))
	version := s.get().ResourceVersion
	for range 50 {
		passed := time.Since(begun)
		now := age + passed
		s.report(activityReport("resolver-a", 0, observed+passed, &now))
	}
	// The interval of reports is 10 s here: a slow machine may have got there.
	if got := s.get().ResourceVersion; got != version && time.Since(begun) < activity.Interval(40*time.Second)/2 {
		t.Errorf("the version went from %s to %s with reports of nothing new", version, got)
	}
	now := time.Millisecond
	s.report(activityReport("resolver-a", 0, observed+time.Since(begun), &now))
	if s.get().ResourceVersion == version {
		t.Error("a report of a new request was not written")
	}
}

func TestEntriesOfDeadResolversAreDropped(t *testing.T) {
	s := startReporting(t)
	for i := range activity.MaxResolvers + 6 {
		s.report(activityReport(fmt.Sprintf("resolver-%02d", i), 0, time.Hour, nil))
	}
	status := s.get().Status
	if len(status.Activity) != activity.MaxResolvers || status.Activity[0].Resolver != "resolver-06" {
		t.Errorf("%d resolvers are kept, the first is %s: want the %d that reported last", len(status.Activity), status.Activity[0].Resolver, activity.MaxResolvers)
	}

	s.updateStatus(func(status *v1alpha1.ElastiServiceStatus) {
		status.Activity = status.Activity[:2]
		status.Activity[0].ReportTime = metav1.NewMicroTime(time.Now().Add(-activity.ForgetAfter - time.Minute))
	})
	s.report(activityReport("resolver-new", 0, time.Hour, nil))
	if status := s.get().Status; len(status.Activity) != 2 || status.Activity[1].Resolver != "resolver-new" {
		t.Errorf("got %+v, want the one that reported long ago to be dropped", status.Activity)
	}
}

// A time that was written by a clock that was ahead does not hide later activity.
func TestActivityOfTheFutureIsCorrected(t *testing.T) {
	s := startReporting(t)
	future := metav1.NewTime(time.Now().Add(time.Hour))
	s.updateStatus(func(status *v1alpha1.ElastiServiceStatus) { status.LastActivityTime = &future })
	s.report(activityReport("resolver-a", 1, time.Minute, nil))
	if got := s.get().Status.LastActivityTime; got.After(time.Now()) {
		t.Errorf("the last activity is at %s, in the future", got)
	}
}

func TestInvalidReportsAreRejected(t *testing.T) {
	s := startReporting(t)
	services := s.client.ElastiV1alpha1().ElastiServices(namespace)
	longer := time.Hour
	for field, report := range map[string]*v1alpha1.ActivityReport{
		"spec.resolver":                   activityReport("", 0, time.Minute, nil),
		"spec.open":                       activityReport("resolver-a", -1, time.Minute, nil),
		"spec.observedMilliseconds":       activityReport("resolver-a", 0, -time.Minute, nil),
		"spec.lastRequestAgeMilliseconds": activityReport("resolver-a", 0, time.Minute, &longer),
	} {
		if _, err := services.ReportActivity(t.Context(), "cart", report, metav1.CreateOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want an error that names the field", field, err)
		}
	}
	if _, err := services.ReportActivity(t.Context(), "missing", activityReport("resolver-a", 0, 0, nil), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing ElastiService: got %v, want not found", err)
	}
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if _, err := services.ReportActivity(t.Context(), "cart", activityReport("resolver-a", 0, 0, nil), dryRun); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if got := s.get().Status.Activity; len(got) > 0 {
		t.Errorf("got %+v, want nothing to be written", got)
	}
}

// Reports of many resolvers come at the same time as writes of the status.
func TestReportsDoNotOverwriteEachOther(t *testing.T) {
	s := startReporting(t)
	const resolvers = 20
	failed := make(chan error, resolvers)
	for i := range resolvers {
		go func() {
			_, err := s.client.ElastiV1alpha1().ElastiServices(namespace).ReportActivity(context.WithoutCancel(t.Context()), "cart",
				activityReport(fmt.Sprintf("resolver-%02d", i), 1, time.Hour, nil), metav1.CreateOptions{})
			failed <- err
		}()
	}
	for range resolvers {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if got := len(s.get().Status.Activity); got != resolvers {
		t.Errorf("%d of %d resolvers are in the status", got, resolvers)
	}
}
