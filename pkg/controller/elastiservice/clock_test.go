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
	"time"

	"k8s.io/utils/clock"
)

// acceleration is how much faster than real time the time of a cluster goes, so
// that tests need not wait for what the controller waits for.
const acceleration = 5

// acceleratedClock is a real clock that goes faster. It cannot be stepped from
// outside, so it needs no knowledge of what waits for it.
type acceleratedClock struct {
	started time.Time
}

var _ clock.WithTicker = acceleratedClock{}

func (c acceleratedClock) Now() time.Time {
	return c.started.Add(time.Since(c.started) * acceleration)
}

func (c acceleratedClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c acceleratedClock) After(d time.Duration) <-chan time.Time {
	return time.After(d / acceleration)
}

func (c acceleratedClock) NewTimer(d time.Duration) clock.Timer {
	return quickTimer{clock.RealClock{}.NewTimer(d / acceleration)}
}

func (c acceleratedClock) NewTicker(d time.Duration) clock.Ticker {
	return clock.RealClock{}.NewTicker(d / acceleration)
}

func (c acceleratedClock) Tick(d time.Duration) <-chan time.Time { return c.NewTicker(d).C() }

func (c acceleratedClock) Sleep(d time.Duration) { clock.RealClock{}.Sleep(d / acceleration) }

type quickTimer struct{ clock.Timer }

func (t quickTimer) Reset(d time.Duration) bool { return t.Timer.Reset(d / acceleration) }
