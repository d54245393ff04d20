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

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// moment is one thing that happened.
type moment struct {
	at     time.Time
	source string
	what   string
}

// step is a moment that the summary of a cold start is made of.
type step int

const (
	received step = iota
	scaled
	podReady
	responded
)

// timeline collects moments. It is safe for concurrent use.
type timeline struct {
	mu      sync.Mutex
	moments []moment
	steps   map[step]time.Time
}

func (t *timeline) add(at time.Time, source, format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moments = append(t.moments, moment{at: at, source: source, what: fmt.Sprintf(format, arguments...)})
}

// mark remembers when a step was first taken.
func (t *timeline) mark(taken step, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.steps[taken]; known || at.IsZero() {
		return
	}
	if t.steps == nil {
		t.steps = map[step]time.Time{}
	}
	t.steps[taken] = at
}

// summary says what the time of the request went into, or nothing where a step
// is not known, as for a request that found the target awake.
func (t *timeline) summary() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, needed := range []step{received, scaled, podReady, responded} {
		if _, known := t.steps[needed]; !known {
			return ""
		}
	}
	between := func(from, to step) float64 { return milliseconds(t.steps[to].Sub(t.steps[from])) }
	return fmt.Sprintf("The response came %.0f ms after the request: %.0f ms until the target was scaled, %.0f ms for the pod to start, %.1f ms from there to the response.",
		between(received, responded), between(received, scaled), between(scaled, podReady), between(podReady, responded))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// print writes the moments in their order, in milliseconds since start.
func (t *timeline) print(destination io.Writer, start time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.moments, func(a, b moment) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	table := tabwriter.NewWriter(destination, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "%8s\tas recorded by\twhat happened\n", "ms")
	for _, m := range t.moments {
		fmt.Fprintf(table, "%8.1f\t%s\t%s\n", milliseconds(m.at.Sub(start)), m.source, m.what)
	}
	return table.Flush()
}
