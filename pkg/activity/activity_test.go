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

package activity_test

import (
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
)

func TestNoTargetSleepsOnReportsOlderThanItsCooldown(t *testing.T) {
	for cooldown := 8 * time.Second; cooldown <= 7*24*time.Hour; cooldown += 7 * time.Second {
		if staleness := activity.Staleness(cooldown); staleness > cooldown {
			t.Fatalf("with a cooldown of %s, reports are trusted for %s", cooldown, staleness)
		}
	}
}

func TestTwoLostReportsAreNotNoticed(t *testing.T) {
	for _, cooldown := range []time.Duration{0, time.Second, 10 * time.Second, time.Minute, 15 * time.Minute, 7 * 24 * time.Hour} {
		interval, staleness := activity.Interval(cooldown), activity.Staleness(cooldown)
		if interval < activity.MinInterval || interval > activity.MaxInterval {
			t.Errorf("with a cooldown of %s, reports are %s apart", cooldown, interval)
		}
		if staleness < 3*interval+time.Second {
			t.Errorf("with a cooldown of %s, reports %s apart are trusted for %s only", cooldown, interval, staleness)
		}
	}
}

func TestReportsAreForgottenOnlyWhenTheyAreStale(t *testing.T) {
	for cooldown := time.Duration(0); cooldown <= 7*24*time.Hour; cooldown += 7 * time.Second {
		if staleness := activity.Staleness(cooldown); staleness >= activity.ForgetAfter {
			t.Fatalf("with a cooldown of %s, reports are trusted for %s, and dropped after %s", cooldown, staleness, activity.ForgetAfter)
		}
	}
}
