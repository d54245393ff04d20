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

package activity

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const interval = 10 * time.Second

// server records reports.
type server struct {
	mu      sync.Mutex
	failing bool
	calls   int
	reports []received
}

type received struct {
	at   time.Time
	spec v1alpha1.ActivityReportSpec
}

func (s *server) ReportActivity(_ context.Context, namespace, name string, report *v1alpha1.ActivityReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	switch {
	case s.failing:
		return errors.New("not now")
	case namespace != "shop" || name != "cart":
		return errors.New("a report about something else")
	}
	s.reports = append(s.reports, received{time.Now(), report.Spec})
	return nil
}

func (s *server) fail(failing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

// take returns the reports since the last take.
func (s *server) take() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.reports
	s.reports = nil
	return taken
}

// run runs a test in fake time, with a reporter and a tracker of one service.
func run(t *testing.T, test func(t *testing.T, s *server, tracker *Tracker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		reporter := New(Options{Client: s, Resolver: "resolver-0"})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { reporter.Run(ctx) })
		defer running.Wait()
		defer cancel()
		tracker := reporter.Track("shop", "cart")
		defer tracker.Close()
		test(t, s, tracker)
	})
}

// after lets time pass.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestAResolverWithNothingToReportStillReports(t *testing.T) {
	run(t, func(t *testing.T, s *server, tracker *Tracker) {
		after(time.Minute)
		tracker.Apply(Policy{Report: true, KeepAlive: true, Interval: interval})
		after(time.Second)
		first := s.take()
		if len(first) != 1 {
			t.Fatalf("got %d reports in the first second, want one", len(first))
		}
		spec := first[0].spec
		if spec.Resolver != "resolver-0" || spec.Open != 0 || spec.LastRequestAgeMilliseconds != nil || spec.ObservedMilliseconds != 60_000 {
			t.Errorf("got %+v, want no request in the 60 s of observation", spec)
		}
		after(time.Hour)
		if n := len(s.take()); n < 300 || n > 361 {
			t.Errorf("got %d reports in an hour, want one each %s, and up to a tenth later", n, interval)
		}
	})
}

func TestTheFirstRequestAfterAnIdleTimeIsReportedAtOnceAndThenAtABoundedRate(t *testing.T) {
	for name, keepAlive := range map[string]bool{"kept alive": true, "reported when there is something": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, s *server, tracker *Tracker) {
				tracker.Apply(Policy{Report: true, KeepAlive: keepAlive, Interval: interval})
				after(5 * interval)
				if n := len(s.take()); !keepAlive && n > 0 {
					t.Errorf("got %d reports without a request, want none", n)
				}
				for range 600 {
					tracker.Begin()
					after(50 * time.Millisecond)
					tracker.End()
					after(50 * time.Millisecond)
				}
				reports := s.take()
				if len(reports) < 6 || len(reports) > 8 {
					t.Errorf("got %d reports in a minute of requests, want one at once and one each %s", len(reports), interval)
				}
				if age := reports[0].spec.ObservedMilliseconds - (5 * interval).Milliseconds(); age > 500 {
					t.Errorf("the first request was reported after %d ms", age)
				}
				after(2 * interval)
				reports = s.take()
				last := reports[0]
				if age := last.spec.LastRequestAgeMilliseconds; age == nil || *age > (interval+interval/5).Milliseconds() || last.spec.Open != 0 {
					t.Errorf("after the last request: got %+v, want its age", last.spec)
				}
				after(10 * interval)
				if n := len(s.take()); !keepAlive && n > 0 {
					t.Errorf("got %d reports of nothing new, want none", n)
				}
			})
		})
	}
}

func TestWhatIsOpenIsReportedForAsLongAsItIs(t *testing.T) {
	run(t, func(t *testing.T, s *server, tracker *Tracker) {
		tracker.Apply(Policy{Report: true, Interval: interval})
		after(interval)
		tracker.Begin()
		tracker.Begin()
		after(time.Hour)
		reports := s.take()
		if len(reports) < 300 {
			t.Errorf("got %d reports in an hour with two connections open, want one each %s", len(reports), interval)
		}
		for _, report := range reports {
			if report.spec.Open != 2 {
				t.Fatalf("got %+v, want two open connections", report.spec)
			}
		}
		tracker.End()
		tracker.End()
		ended := time.Now()
		after(2 * interval)
		reports = s.take()
		if len(reports) != 1 {
			t.Fatalf("got %d reports after the end, want one", len(reports))
		}
		age := time.Duration(*reports[0].spec.LastRequestAgeMilliseconds) * time.Millisecond
		if off := reports[0].at.Add(-age).Sub(ended).Abs(); reports[0].spec.Open != 0 || off > time.Millisecond {
			t.Errorf("got %+v, %s beside the end of the connections", reports[0].spec, off)
		}
	})
}

func TestFailedReportsAreRetriedWithBackoff(t *testing.T) {
	run(t, func(t *testing.T, s *server, tracker *Tracker) {
		s.fail(true)
		tracker.Apply(Policy{Report: true, Interval: interval})
		after(interval)
		tracker.Begin()
		tracker.End()
		after(10 * time.Minute)
		s.mu.Lock()
		calls := s.calls
		s.mu.Unlock()
		if calls < 40 || calls > 90 {
			t.Errorf("the failing server was called %d times in 10 minutes", calls)
		}
		s.fail(false)
		after(2 * lastRetry)
		reports := s.take()
		if len(reports) == 0 {
			t.Fatal("nothing was reported once the server was back")
		}
		if age := reports[0].spec.LastRequestAgeMilliseconds; age == nil || *age < (10*time.Minute).Milliseconds() {
			t.Errorf("got %+v, want the request of ten minutes ago", reports[0].spec)
		}
	})
}

func TestNothingIsReportedWithoutAPolicy(t *testing.T) {
	run(t, func(t *testing.T, s *server, tracker *Tracker) {
		tracker.Apply(Policy{Interval: interval})
		tracker.Begin()
		after(time.Hour)
		if n := len(s.take()); n > 0 || tracker.Needed() {
			t.Errorf("got %d reports, want none", n)
		}
		// The traffic was counted nevertheless.
		tracker.Apply(Policy{Report: true, Interval: interval})
		after(time.Second)
		if reports := s.take(); len(reports) != 1 || reports[0].spec.Open != 1 {
			t.Errorf("got %+v, want the open connection", reports)
		}
		tracker.Close()
		after(time.Hour)
		if n := len(s.take()); n > 0 {
			t.Errorf("got %d reports of a deleted service, want none", n)
		}
	})
}

// Every request is reported, whenever it comes between two reports.
func TestEveryRequestIsReported(t *testing.T) {
	run(t, func(t *testing.T, s *server, tracker *Tracker) {
		tracker.Apply(Policy{Report: true, Interval: interval})
		for i := range 400 {
			pause := time.Duration(i) * 137 * time.Millisecond % (3 * interval)
			after(pause)
			tracker.Begin()
			after(time.Duration(i%7) * 100 * time.Millisecond)
			tracker.End()
			ended := time.Now()
			after(interval + interval/5 + time.Second)
			reports := s.take()
			if len(reports) == 0 {
				t.Fatalf("request %d, after a pause of %s, was not reported", i, pause)
			}
			last := reports[len(reports)-1]
			age := last.spec.LastRequestAgeMilliseconds
			if age == nil || last.at.Add(-time.Duration(*age)*time.Millisecond).Sub(ended).Abs() > time.Millisecond {
				t.Fatalf("request %d, after a pause of %s: got %+v, want its end", i, pause, last.spec)
			}
		}
	})
}

func TestCountingAllocatesNothing(t *testing.T) {
	tracker := NewTracker()
	if n := testing.AllocsPerRun(1000, func() {
		tracker.Begin()
		tracker.End()
	}); n > 0 {
		t.Errorf("a request allocates %v times", n)
	}
}
