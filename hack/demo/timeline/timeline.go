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

// timeline collects moments. Safe for concurrent use.
type timeline struct {
	mu      sync.Mutex
	moments []moment
}

func (t *timeline) add(at time.Time, source, format string, arguments ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moments = append(t.moments, moment{at: at, source: source, what: fmt.Sprintf(format, arguments...)})
}

// print writes the moments in their order, in milliseconds since start.
func (t *timeline) print(destination io.Writer, start time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.moments, func(a, b moment) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	table := tabwriter.NewWriter(destination, 0, 0, 3, ' ', 0)
	fmt.Fprintf(table, "%8s\tas recorded by\twhat happened\n", "ms")
	for _, m := range t.moments {
		fmt.Fprintf(table, "%8.1f\t%s\t%s\n", float64(m.at.Sub(start).Microseconds())/1000, m.source, m.what)
	}
	return table.Flush()
}
