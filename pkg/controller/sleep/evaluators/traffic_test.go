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
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const trafficCooldown = 40 * time.Second

// reported is what a resolver reported some time ago.
func reported(resolver string, ago time.Duration, change func(*v1alpha1.ResolverActivity)) v1alpha1.ResolverActivity {
	entry := v1alpha1.ResolverActivity{
		Resolver:      resolver,
		ReportTime:    metav1.NewMicroTime(testNow.Add(-ago)),
		ObservedSince: metav1.NewMicroTime(testNow.Add(-time.Hour)),
	}
	if change != nil {
		change(&entry)
	}
	return entry
}

func microTime(ago time.Duration) *metav1.MicroTime {
	return ptr.To(metav1.NewMicroTime(testNow.Add(-ago)))
}

// byTraffic is an awake ElastiService that sleeps by traffic, whose two
// resolvers have seen none.
func byTraffic() *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(testNow.Add(-24 * time.Hour))},
		Spec: v1alpha1.ElastiServiceSpec{
			CooldownPeriod: ptr.To(int32(trafficCooldown / time.Second)),
			Triggers:       []v1alpha1.ScaleTrigger{{Type: "traffic"}},
			Proxy:          &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways},
		},
		Status: v1alpha1.ElastiServiceStatus{
			Replicas: 1,
			Activity: []v1alpha1.ResolverActivity{reported("a", 5*time.Second, nil), reported("b", 9*time.Second, nil)},
		},
	}
}

func TestTrafficStates(t *testing.T) {
	stale := activity.Staleness(trafficCooldown) + time.Millisecond
	open := func(entry *v1alpha1.ResolverActivity) { entry.Open = 1 }
	for name, test := range map[string]struct {
		change func(*v1alpha1.ElastiService)
		ready  []string
		want   State
		reason string
	}{
		"quiet":                     {nil, []string{"a", "b"}, Idle, v1alpha1.ReasonNoTraffic},
		"used a moment ago":         {func(e *v1alpha1.ElastiService) { e.Status.Activity[0].LastRequestTime = microTime(0) }, []string{"a", "b"}, Idle, v1alpha1.ReasonNoTraffic},
		"open":                      {func(e *v1alpha1.ElastiService) { e.Status.Activity[1].Open = 1 }, []string{"a", "b"}, Active, v1alpha1.ReasonTraffic},
		"open, asleep":              {func(e *v1alpha1.ElastiService) { e.Status.Activity[1].Open, e.Status.Replicas = 1, 0 }, []string{"a", "b"}, Active, v1alpha1.ReasonTraffic},
		"open where it is drained":  {func(e *v1alpha1.ElastiService) { e.Status.Activity[1].Open = 1 }, []string{"a"}, Active, v1alpha1.ReasonTraffic},
		"open at one that died":     {func(e *v1alpha1.ElastiService) { e.Status.Activity[1] = reported("b", stale, open) }, []string{"a"}, Idle, v1alpha1.ReasonNoTraffic},
		"one has not reported":      {nil, []string{"a", "b", "c"}, Unknown, v1alpha1.ReasonNotReported},
		"one reported too long ago": {func(e *v1alpha1.ElastiService) { e.Status.Activity[0] = reported("a", stale, nil) }, []string{"a", "b"}, Unknown, v1alpha1.ReasonNotReported},
		"one is killed while open":  {func(e *v1alpha1.ElastiService) { e.Status.Activity[0] = reported("a", stale, open) }, []string{"a", "b"}, Unknown, v1alpha1.ReasonNotReported},
		"a deleted one is stale":    {func(e *v1alpha1.ElastiService) { e.Status.Activity[0] = reported("a", stale, nil) }, []string{"b"}, Idle, v1alpha1.ReasonNoTraffic},
		"reported by a clock ahead": {func(e *v1alpha1.ElastiService) { e.Status.Activity[0] = reported("a", -time.Second, nil) }, []string{"a", "b"}, Idle, v1alpha1.ReasonNoTraffic},
		"reported in the far future": {func(e *v1alpha1.ElastiService) { e.Status.Activity[0] = reported("a", -stale, nil) },
			[]string{"a", "b"}, Unknown, v1alpha1.ReasonNotReported},
		"nothing reported":    {func(e *v1alpha1.ElastiService) { e.Status.Activity = nil }, []string{"a"}, Unknown, v1alpha1.ReasonNotReported},
		"no resolver":         {nil, []string{}, Unknown, v1alpha1.ReasonNotReported},
		"resolvers not known": {nil, nil, Unknown, v1alpha1.ReasonAwaitingReports},
		"asleep, no reports":  {func(e *v1alpha1.ElastiService) { e.Status.Activity, e.Status.Replicas = nil, 0 }, []string{"a"}, Idle, v1alpha1.ReasonNoTraffic},
		"woken a moment ago": {func(e *v1alpha1.ElastiService) {
			e.Status.Activity = nil
			e.Status.LastScaledUpTime = ptr.To(metav1.NewTime(testNow.Add(-time.Second)))
		}, []string{"a"}, Unknown, v1alpha1.ReasonAwaitingReports},
		"created a moment ago": {func(e *v1alpha1.ElastiService) {
			e.Status.Activity = nil
			e.CreationTimestamp = metav1.NewTime(testNow)
		}, []string{"a"}, Unknown, v1alpha1.ReasonAwaitingReports},
		"not in the path": {func(e *v1alpha1.ElastiService) { e.Spec.Proxy = nil }, []string{"a", "b"}, Unknown, v1alpha1.ReasonResolversNotInPath},
		"not always in the path": {func(e *v1alpha1.ElastiService) { e.Spec.Proxy.Policy = v1alpha1.ProxyWhenAsleep },
			[]string{"a", "b"}, Unknown, v1alpha1.ReasonResolversNotInPath},
		"a request on the way to sleep": {func(e *v1alpha1.ElastiService) {
			e.Status.SleepRequestedTime = ptr.To(metav1.NewTime(testNow.Add(-2 * time.Second)))
			e.Status.Activity[0].LastRequestTime = microTime(time.Second)
		}, []string{"a", "b"}, Active, v1alpha1.ReasonTraffic},
		"no request on the way to sleep": {func(e *v1alpha1.ElastiService) {
			e.Status.SleepRequestedTime = ptr.To(metav1.NewTime(testNow.Add(-2 * time.Second)))
			e.Status.Activity[0].LastRequestTime = microTime(50 * time.Second)
		}, []string{"a", "b"}, Idle, v1alpha1.ReasonNoTraffic},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := byTraffic()
			if test.change != nil {
				test.change(elastiService)
			}
			result := evaluateReports(elastiService, test.ready, test.ready != nil, testNow)
			if result.State != test.want || result.Reason != test.reason || result.Message == "" {
				t.Errorf("got %+v, want %s because of %s", result, test.want, test.reason)
			}
		})
	}
}

func TestTrafficReportsWhichShareItSees(t *testing.T) {
	const two = "it sees about 2 of 5 new connections"
	for name, test := range map[string]struct {
		change func(*v1alpha1.ElastiService)
		ready  []string
		want   string
	}{
		"idle":                 {nil, []string{"a", "b"}, two},
		"active":               {func(e *v1alpha1.ElastiService) { e.Status.Activity[1].Open = 1 }, []string{"a", "b"}, two},
		"another resolver":     {nil, []string{"a", "b", "c"}, "it sees about 3 of 6 new connections"},
		"starting":             {func(e *v1alpha1.ElastiService) { e.Status.ReadyReplicas = 0 }, []string{"a", "b"}, ""},
		"asleep, pods leaving": {func(e *v1alpha1.ElastiService) { e.Status.Replicas = 0 }, []string{"a", "b"}, ""},
		"no resolver":          {nil, []string{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := byTraffic()
			elastiService.Status.Replicas, elastiService.Status.ReadyReplicas = 3, 3
			if test.change != nil {
				test.change(elastiService)
			}
			resolvers := &Resolvers{}
			resolvers.Set(test.ready)
			result, err := NewTraffic(resolvers, clocktesting.NewFakePassiveClock(testNow)).Evaluate(t.Context(), Subject{ElastiService: elastiService, Trigger: &elastiService.Spec.Triggers[0]})
			if err != nil || !strings.HasPrefix(result.Note, test.want) || (result.Note == "") != (test.want == "") {
				t.Errorf("got %+v (error: %v), want the note %q", result, err, test.want)
			}
		})
	}
}

// Not even one of the reports that are missing is taken for silence.
func TestMissingReportsNeverSleepATarget(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	staleness := activity.Staleness(trafficCooldown)
	for range 20000 {
		elastiService := byTraffic()
		elastiService.Status.Activity = nil
		missing, ready := false, []string{}
		for i := range 1 + random.IntN(4) {
			name := fmt.Sprintf("resolver-%d", i)
			ready = append(ready, name)
			ago := time.Duration(random.Int64N(int64(2 * staleness)))
			switch {
			case random.IntN(3) == 0:
				missing = true
				continue
			case ago > staleness:
				missing = true
			}
			elastiService.Status.Activity = append(elastiService.Status.Activity, reported(name, ago, nil))
		}
		if result := evaluateReports(elastiService, ready, true, testNow); missing != (result.State == Unknown) {
			t.Fatalf("got %+v of the resolvers %v and the reports %+v", result, ready, elastiService.Status.Activity)
		}
	}
}
