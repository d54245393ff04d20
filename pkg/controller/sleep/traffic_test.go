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
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
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

func TestTheCooldownCountsFromWhatResolversSaw(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ElastiService)
		want   time.Duration
	}{
		"a request": {func(e *v1alpha1.ElastiService) { e.Status.Activity[1].LastRequestTime = microTime(7 * time.Second) }, 7 * time.Second},
		"a request at one that died": {func(e *v1alpha1.ElastiService) {
			e.Status.Activity[1] = reported("b", time.Minute, func(entry *v1alpha1.ResolverActivity) { entry.LastRequestTime = microTime(2 * time.Minute) })
		}, 2 * time.Minute},
		"an open connection": {func(e *v1alpha1.ElastiService) { e.Status.Activity[0].Open = 3 }, 0},
		"a resolver that has just started": {func(e *v1alpha1.ElastiService) {
			e.Status.Activity[0].ObservedSince = *microTime(11 * time.Second)
		}, 11 * time.Second},
		"an open connection under another trigger": {func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers[0].Type, e.Status.Activity[0].Open = "prometheus", 1
		}, 0},
		"a new resolver under another trigger": {func(e *v1alpha1.ElastiService) {
			e.Spec.Triggers[0].Type = "prometheus"
			e.Status.Activity[0].ObservedSince = *microTime(0)
			e.Status.Activity[0].LastRequestTime = microTime(time.Minute)
		}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			elastiService := byTraffic()
			test.change(elastiService)
			if got := testNow.Sub(trafficSeen(elastiService, testNow)); got != test.want {
				t.Errorf("traffic was seen %s ago, want %s", got, test.want)
			}
		})
	}
}

// simulation is a few resolvers and what they report of one ElastiService, second by
// second.
type simulation struct {
	random        *rand.Rand
	elastiService *v1alpha1.ElastiService
	now           time.Time
	resolvers     []*simulatedResolver
	history       History
	nextSync      time.Time
	lastTraffic   time.Time
	// lastCutOff is when a resolver last could not report what it saw.
	lastCutOff time.Time
	asleep     time.Time
}

// simulatedResolver is one resolver. Its name stays when it is restarted.
type simulatedResolver struct {
	name       string
	up, ready  bool
	cutOff     bool
	since      time.Time
	last       time.Time
	open       int32
	nextReport time.Time
}

func newSimulation(seed uint64) *simulation {
	w := &simulation{random: rand.New(rand.NewPCG(seed, 1)), elastiService: byTraffic(), now: testNow}
	w.elastiService.Status.Activity = nil
	w.elastiService.CreationTimestamp = metav1.NewTime(testNow)
	for i := range 2 + w.random.IntN(2) {
		w.resolvers = append(w.resolvers, &simulatedResolver{name: fmt.Sprintf("resolver-%d", i), up: true, ready: true, since: testNow, nextReport: testNow})
	}
	return w
}

// step lets a second pass, with or without traffic and accidents.
func (w *simulation) step(traffic, accidents bool) {
	w.now = w.now.Add(time.Second)
	for _, r := range w.resolvers {
		if accidents && w.random.IntN(60) == 0 {
			switch w.random.IntN(4) {
			case 0: // kill -9
				*r = simulatedResolver{name: r.name, ready: r.ready}
			case 1: // deleted, and replaced under another name
				*r = simulatedResolver{name: fmt.Sprintf("%s-%d", r.name[:10], w.random.IntN(1000))}
			case 2:
				r.cutOff = !r.cutOff
			case 3:
				r.ready = false
			}
		}
		// kubelet starts what has died, and finds it ready, in a while.
		if !r.up && (!accidents || w.random.IntN(5) == 0) {
			r.up, r.since, r.nextReport = true, w.now, w.now
		}
		if r.up && !r.ready && (!accidents || w.random.IntN(5) == 0) {
			r.ready = true
		}
		if !accidents {
			r.cutOff = false
		}
		if r.cutOff {
			w.lastCutOff = w.now
		}
		if !r.up {
			continue
		}
		w.use(r, traffic)
		w.report(r)
	}
	w.sync()
}

// use makes requests come and go at a resolver.
func (w *simulation) use(r *simulatedResolver, traffic bool) {
	switch {
	case r.open > 0 && (!traffic || w.random.IntN(10) == 0):
		r.open, r.last = 0, w.now
		w.lastTraffic = w.now
	case r.open > 0:
		w.lastTraffic = w.now
	case traffic && r.ready && w.random.IntN(5) == 0:
		w.lastTraffic = w.now
		if w.random.IntN(4) == 0 {
			r.open = 1
		} else {
			r.last = w.now
		}
		// At once.
		r.nextReport = w.now
	}
}

// report makes part of the status what a resolver has to report, when it is due.
func (w *simulation) report(r *simulatedResolver) {
	if w.now.Before(r.nextReport) || r.cutOff {
		return
	}
	r.nextReport = w.now.Add(activity.Interval(trafficCooldown))
	entry := v1alpha1.ResolverActivity{Resolver: r.name, ReportTime: metav1.NewMicroTime(w.now), ObservedSince: metav1.NewMicroTime(r.since), Open: r.open}
	if !r.last.IsZero() {
		entry.LastRequestTime = ptr.To(metav1.NewMicroTime(r.last))
	}
	status := w.elastiService.Status.DeepCopy()
	status.Activity = slices.DeleteFunc(status.Activity, func(known v1alpha1.ResolverActivity) bool { return known.Resolver == r.name })
	status.Activity = append(status.Activity, entry)
	before := w.elastiService
	after := before.DeepCopy()
	after.Status = *status
	w.elastiService = after
	if trafficChanged(before, after) {
		w.nextSync = w.now
	}
}

// evaluate returns the result of the trigger.
func (w *simulation) evaluate(ready []string) evaluators.Result {
	resolvers := &evaluators.Resolvers{}
	resolvers.Set(ready)
	result, err := evaluators.NewTraffic(resolvers, clocktesting.NewFakePassiveClock(w.now)).Evaluate(context.Background(), evaluators.Subject{ElastiService: w.elastiService})
	if err != nil {
		panic(err)
	}
	return result
}

// sync decides as the scheduler does, when it is time.
func (w *simulation) sync() {
	if w.now.Before(w.nextSync) || !w.asleep.IsZero() {
		return
	}
	var ready []string
	for _, r := range w.resolvers {
		if r.ready {
			ready = append(ready, r.name)
		}
	}
	decision := Decide(Observation{
		Now: w.now, Interval: testInterval, Cooldown: trafficCooldown, History: w.history,
		Created:       w.elastiService.CreationTimestamp.Time,
		TrafficSeen:   trafficSeen(w.elastiService, w.now),
		Triggers:      []evaluators.Result{w.evaluate(ready)},
		ReplicasKnown: true, Replicas: 1,
	})
	w.history, w.nextSync = decision.History, w.now.Add(decision.NextCheck)
	if decision.Action == ActionSleep {
		w.asleep = w.now
	}
}

// Whatever dies, restarts, is replaced or cut off: a target with traffic does
// not sleep, and one without does in the end.
func TestResolversThatDieNeitherPutATargetToSleepNorKeepItAwake(t *testing.T) {
	for seed := range uint64(300) {
		w := newSimulation(seed)
		for range 600 {
			w.step(true, true)
			if !w.asleep.IsZero() {
				// What a resolver saw that was cut off and then died cannot be
				// known. What another one saw is known but for one report.
				quiet := w.now.Sub(w.lastTraffic)
				reachable := w.now.Sub(w.lastCutOff) > trafficCooldown+activity.Staleness(trafficCooldown)
				if reachable && quiet < trafficCooldown-activity.Interval(trafficCooldown) {
					t.Fatalf("seed %d: asleep %s after traffic", seed, quiet)
				}
				w.asleep = time.Time{}
				w.history = History{}
			}
		}
		ended := w.now
		bound := activity.Staleness(trafficCooldown) + trafficCooldown + 3*testInterval
		for w.asleep.IsZero() {
			w.step(false, false)
			if w.now.Sub(ended) > bound {
				t.Fatalf("seed %d: still awake %s after the end of the traffic: %+v", seed, w.now.Sub(ended), w.elastiService.Status.Activity)
			}
		}
		if quiet := w.asleep.Sub(w.lastTraffic); quiet < trafficCooldown-activity.Interval(trafficCooldown) {
			t.Fatalf("seed %d: asleep %s after the last traffic", seed, quiet)
		}
	}
}
