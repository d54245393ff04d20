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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// start is when the times of these tests begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(offset time.Duration) time.Time { return start.Add(offset) }

func TestLatestIsTheNewerOneOfWatchedAndWritten(t *testing.T) {
	t.Parallel()
	object := func(uid types.UID, version string) *v1alpha1.ElastiService {
		elastiService := cartElastiService()
		elastiService.UID, elastiService.ResourceVersion = uid, version
		return elastiService
	}
	for _, test := range []struct {
		name             string
		written, watched *v1alpha1.ElastiService
		writtenCounts    bool
	}{
		{"nothing was written", nil, object("a", "7"), false},
		{"the watch is behind", object("a", "9"), object("a", "7"), true},
		{"the watch has it", object("a", "9"), object("a", "9"), false},
		{"the watch has a newer one", object("a", "9"), object("a", "10"), false},
		{"it was deleted and made again", object("a", "9"), object("b", "7"), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &state{}
			if test.written != nil {
				s.recordWrite(test.written)
			}
			want := test.watched
			if test.writtenCounts {
				want = test.written
			}
			if got := s.latest(test.watched); got != want {
				t.Errorf("got version %s", got.ResourceVersion)
			}
			if kept := s.written != nil; kept != test.writtenCounts {
				t.Errorf("what was written is kept: %t", kept)
			}
		})
	}
}

// scaleStep is an observation of a scale and what it is to lead to.
type scaleStep struct {
	at    time.Duration
	facts scaleFacts
	// ended is true when a sleep is to end, after the given time.
	ended bool
	after time.Duration
	// terminating and scaledToZero are what the state is to say then.
	terminating, scaledToZero bool
}

// What is observed of a scale.
var (
	factsUp     = scaleFacts{known: true, wasUp: true, readyEndpoints: 1}
	factsToZero = scaleFacts{known: true, atZero: true, wasUp: true, readyEndpoints: 1}
	factsAsleep = scaleFacts{known: true, atZero: true}
	factsWoken  = scaleFacts{known: true}
)

// factsSince is a scale that another leader saw go to zero.
func factsSince(slept time.Duration) scaleFacts {
	return scaleFacts{known: true, atZero: true, slept: at(slept), readyEndpoints: 1}
}

// scaleHistories are observations of a scale in a row.
var scaleHistories = map[string]struct {
	// scaledToZero is true when a scale-down was completed at the start.
	scaledToZero bool
	steps        []scaleStep
}{
	"it was never seen up": {steps: []scaleStep{
		{at: 0, facts: factsAsleep},
		{at: time.Minute, facts: factsWoken},
	}},
	"it sleeps and wakes": {steps: []scaleStep{
		{at: 0, facts: factsUp},
		{at: time.Minute, facts: factsToZero, terminating: true},
		{at: time.Minute + time.Second, facts: factsAsleep},
		{at: 2 * time.Minute, facts: factsWoken, ended: true, after: 0},
		{at: 3 * time.Minute, facts: factsUp},
	}},
	"it sleeps a moment after it was seen up": {steps: []scaleStep{
		{at: 0, facts: factsUp},
		{at: time.Second, facts: factsToZero, terminating: true},
		{at: time.Minute, facts: factsWoken, ended: true, after: time.Second - observationDelay},
	}},
	"an unknown scale changes nothing": {steps: []scaleStep{
		{at: 0, facts: factsUp},
		{at: time.Minute, facts: factsToZero, terminating: true},
		{at: time.Minute + time.Second, facts: scaleFacts{readyEndpoints: 1}, terminating: true},
		{at: 2 * time.Minute, facts: factsWoken, ended: true, after: 0},
	}},
	"endpoints that stay ready are not those of terminating pods": {steps: []scaleStep{
		{at: 0, facts: factsUp},
		{at: time.Minute, facts: factsToZero, terminating: true},
		{at: time.Minute + terminatingGrace - 1, facts: factsToZero, terminating: true},
		{at: time.Minute + terminatingGrace, facts: factsToZero},
	}},
	"woken while the pods terminate": {steps: []scaleStep{
		{at: 0, facts: factsUp},
		{at: time.Minute, facts: factsToZero, terminating: true},
		{at: time.Minute + time.Second, facts: factsUp, ended: true, after: 0, terminating: true},
	}},
	"another leader saw it go to zero": {steps: []scaleStep{
		{at: time.Second, facts: factsSince(0), terminating: true},
		{at: terminatingGrace - 1, facts: factsSince(0), terminating: true},
		{at: terminatingGrace, facts: factsSince(0)},
	}},
	"another leader saw it go to zero, and the scale is not known yet": {steps: []scaleStep{
		{at: time.Second, facts: scaleFacts{slept: at(0), readyEndpoints: 1}, terminating: true},
		{at: 2 * time.Second, facts: factsSince(0), terminating: true},
		{at: terminatingGrace, facts: factsSince(0)},
	}},
	"another leader saw it go to zero long ago": {steps: []scaleStep{
		{at: terminatingGrace, facts: factsSince(0)},
	}},
	"another leader whose clock is ahead saw it go to zero": {steps: []scaleStep{
		{at: 0, facts: factsSince(time.Hour), terminating: true},
		{at: terminatingGrace - 1, facts: factsSince(time.Hour), terminating: true},
		{at: terminatingGrace, facts: factsSince(time.Hour)},
		{at: terminatingGrace + 1, facts: factsSince(time.Hour)},
	}},
	"a scale-down counts until the watch shows zero": {scaledToZero: true, steps: []scaleStep{
		{at: time.Second, facts: factsUp, scaledToZero: true},
		{at: 2 * time.Second, facts: factsToZero, terminating: true},
		{at: 3 * time.Second, facts: factsToZero, terminating: true},
	}},
	"a scale-down that the watch never shows": {scaledToZero: true, steps: []scaleStep{
		{at: terminatingGrace - 1, facts: factsUp, scaledToZero: true},
		{at: terminatingGrace, facts: factsUp},
	}},
}

func TestStateFollowsTheScale(t *testing.T) {
	t.Parallel()
	for name, test := range scaleHistories {
		t.Run(name, func(t *testing.T) {
			s := &state{}
			if test.scaledToZero {
				s.recordScaledToZero(start)
			}
			for i, step := range test.steps {
				ended := s.recordScale(at(step.at), step.facts)
				if (ended != nil) != step.ended {
					t.Fatalf("step %d: the sleep that ended is %+v", i, ended)
				}
				if ended != nil && !ended.after.Equal(at(step.after)) {
					t.Errorf("step %d: scaled to zero after %s, want %s", i, ended.after, at(step.after))
				}
				if got := s.terminating(); got != step.terminating {
					t.Errorf("step %d: pods terminate: %t", i, got)
				}
				if got := s.scaledToZero(); got != step.scaledToZero {
					t.Errorf("step %d: scaled to zero: %t", i, got)
				}
			}
		})
	}
}

func TestWakeThatTheLeaderBeforeDidNotSee(t *testing.T) {
	t.Parallel()
	lost := scaleFacts{known: true, atZero: true, wasUp: true, sleepCanceled: at(0)}
	with := func(change func(*scaleFacts)) scaleFacts {
		changed := lost
		change(&changed)
		return changed
	}
	for name, test := range map[string]struct {
		before []scaleFacts
		facts  scaleFacts
		now    time.Duration
		want   bool
	}{
		"woken while it was scaled":      {nil, lost, time.Second, true},
		"the scale is unknown at first":  {[]scaleFacts{{}}, lost, time.Second, true},
		"woken long before":              {nil, lost, wakeValidity, false},
		"woken by a clock that is ahead": {nil, lost, -clockSkew, true},
		"woken in the future":            {nil, lost, -clockSkew - 1, false},
		"no wake canceled a request":     {nil, with(func(f *scaleFacts) { f.sleepCanceled = time.Time{} }), time.Second, false},
		"sleep is still requested":       {nil, with(func(f *scaleFacts) { f.requested = true }), time.Second, false},
		"it was recorded to sleep":       {nil, with(func(f *scaleFacts) { f.wasUp = false }), time.Second, false},
		"it is awake":                    {nil, with(func(f *scaleFacts) { f.atZero = false }), time.Second, false},
		"this leader saw it up":          {[]scaleFacts{{known: true, wasUp: true}}, lost, time.Second, false},
		"this leader saw it at zero":     {[]scaleFacts{lost}, lost, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &state{}
			for _, facts := range test.before {
				s.recordScale(start, facts)
			}
			if got := s.lostWake(at(test.now), test.facts); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestStateOfAScaleDown(t *testing.T) {
	t.Parallel()
	type want struct {
		drained time.Duration
		pausing bool
	}
	drain := func(offset time.Duration) func(*state) { return func(s *state) { s.startDrain(at(offset)) } }
	pause := func(offset time.Duration) func(*state) { return func(s *state) { s.startPause(at(offset), false) } }
	for name, test := range map[string]struct {
		does []func(*state)
		want want
	}{
		"nothing":                       {nil, want{-1, false}},
		"it drains":                     {[]func(*state){drain(0)}, want{time.Minute, false}},
		"it drains still":               {[]func(*state){drain(0), drain(time.Second)}, want{time.Minute, false}},
		"it pauses":                     {[]func(*state){drain(0), pause(time.Second)}, want{time.Minute, true}},
		"the drain stops":               {[]func(*state){drain(0), pause(time.Second), (*state).stopDrain}, want{-1, true}},
		"the pause stops":               {[]func(*state){drain(0), pause(time.Second), (*state).stopPause}, want{time.Minute, false}},
		"it ends":                       {[]func(*state){drain(0), pause(time.Second), (*state).endScaleDown}, want{-1, false}},
		"it begins again after the end": {[]func(*state){drain(0), (*state).endScaleDown, drain(time.Second)}, want{time.Minute - time.Second, false}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &state{}
			for _, do := range test.does {
				do(s)
			}
			now := at(time.Minute)
			if got := (want{s.drained(now), s.pausing()}); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if s.draining() != (test.want.drained >= 0) {
				t.Errorf("draining: %t", s.draining())
			}
			if s.pausing() && s.paused(now) != time.Minute-time.Second {
				t.Errorf("paused for %s", s.paused(now))
			}
		})
	}
}

func TestPrivateServiceLingersAfterTheSlice(t *testing.T) {
	t.Parallel()
	s := &state{}
	if got := s.lingering(start); got > 0 {
		t.Errorf("lingers for %s without a removal", got)
	}
	s.recordSliceRemoval(start)
	for _, passed := range []time.Duration{0, time.Second, lingerTime, lingerTime + time.Second} {
		if got, want := s.lingering(at(passed)), lingerTime-passed; got != want {
			t.Errorf("after %s it lingers for %s, want %s", passed, got, want)
		}
	}
}

func TestRemovalCountsFromItsStart(t *testing.T) {
	t.Parallel()
	s := &state{}
	for _, step := range []struct {
		at, since time.Duration
		started   bool
	}{
		{0, 0, true},
		{time.Minute, 0, false},
	} {
		if since, started := s.startRemoval(at(step.at)); !since.Equal(at(step.since)) || started != step.started {
			t.Errorf("at %s the removal is one since %s, started now: %t", step.at, since, started)
		}
	}
	s.endRemoval()
	if since, started := s.startRemoval(at(time.Hour)); !since.Equal(at(time.Hour)) || !started {
		t.Errorf("after the end the removal is one since %s, started now: %t", since, started)
	}
}

func TestEachElastiServiceHasAState(t *testing.T) {
	t.Parallel()
	states := newStates()
	cart, basket := types.NamespacedName{Namespace: shop, Name: "cart"}, types.NamespacedName{Namespace: shop, Name: "basket"}
	first := states.of(cart)
	first.startDrain(start)
	if states.of(cart) != first || states.of(basket) == first {
		t.Error("the state of an ElastiService is not its own")
	}
	states.forget(cart)
	if states.of(cart).draining() {
		t.Error("the state outlives its ElastiService")
	}
}
