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

package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/schedule"
)

// instants are keyed in UTC.
type instants map[string]bool

// containsTests are expressions, and whether their periods contain instants.
var containsTests = []struct {
	name, expression, duration, timeZone string
	// contains is keyed by instants in UTC.
	contains instants
}{
	{
		name: "within a day", expression: "0 9 * * *", duration: "8h", timeZone: "UTC",
		contains: instants{
			"2026-01-07T08:59:59.999Z": false,
			"2026-01-07T09:00:00Z":     true,
			"2026-01-07T16:59:59.999Z": true,
			"2026-01-07T17:00:00Z":     false,
		},
	},
	{
		// Friday 9 January 2026, 19:00 in Berlin is 18:00 UTC.
		name: "over midnight on working days", expression: "0 19 * * 1-5", duration: "12h", timeZone: "Europe/Berlin",
		contains: instants{
			"2026-01-09T17:59:59Z": false,
			"2026-01-09T18:00:00Z": true,
			"2026-01-09T23:30:00Z": true,
			"2026-01-10T05:59:59Z": true, // Saturday morning belongs to Friday's period.
			"2026-01-10T06:00:00Z": false,
			"2026-01-10T20:00:00Z": false, // Saturday evening.
			"2026-01-11T20:00:00Z": false, // Sunday evening.
			"2026-01-12T18:00:00Z": true,  // Monday evening.
		},
	},
	{
		name: "always, by default", expression: "0 0 * * *", duration: "24h", timeZone: "UTC",
		contains: instants{"2026-01-07T00:00:00Z": true, "2026-01-07T23:59:59.999Z": true},
	},
	{
		// On 25 October 2026 the day in Berlin has 25 hours, on 29 March 23.
		name: "always, where days have 23 and 25 hours", expression: "@daily", duration: "24h", timeZone: "Europe/Berlin",
		contains: instants{
			"2026-10-25T00:30:00Z": true,
			"2026-10-25T01:30:00Z": true,
			"2026-10-25T22:30:00Z": true,
			"2026-03-29T00:59:59Z": true,
			"2026-03-29T01:00:00Z": true,
		},
	},
	{
		// In Cairo, 24 April 2026 has no midnight: 23:59:59 is followed by 01:00.
		name: "a day without a midnight", expression: "0 0 * * *", duration: "24h", timeZone: "Africa/Cairo",
		contains: instants{"2026-04-23T21:59:59Z": true, "2026-04-23T22:00:00Z": true, "2026-04-24T12:00:00Z": true},
	},
	{
		// At 02:00 on 29 March 2026 the clock in Berlin is put forward to
		// 03:00, which is 01:00 UTC.
		name: "a start that the clock skips", expression: "30 2 * * *", duration: "1h", timeZone: "Europe/Berlin",
		contains: instants{
			"2026-03-29T00:59:59Z": false,
			"2026-03-29T01:00:00Z": true,
			"2026-03-29T01:29:59Z": true,
			"2026-03-29T01:30:00Z": false, // 03:30 on the wall.
		},
	},
	{
		name: "the clock is put forward meanwhile", expression: "0 22 * * *", duration: "8h", timeZone: "Europe/Berlin",
		contains: instants{
			"2026-03-28T20:59:59Z": false,
			"2026-03-28T21:00:00Z": true,
			"2026-03-29T03:59:59Z": true,
			"2026-03-29T04:00:00Z": false, // 06:00 on the wall, after 7 hours.
		},
	},
	{
		// At 03:00 on 25 October 2026, 01:00 UTC, it is put back to 02:00.
		name: "the clock is put back meanwhile", expression: "0 22 * * *", duration: "8h", timeZone: "Europe/Berlin",
		contains: instants{
			"2026-10-24T19:59:59Z": false,
			"2026-10-24T20:00:00Z": true,
			"2026-10-25T04:59:59Z": true,
			"2026-10-25T05:00:00Z": false, // 06:00 on the wall, after 9 hours.
		},
	},
	{
		name: "overlapping periods", expression: "0 8,10 * * *", duration: "3h", timeZone: "UTC",
		contains: instants{
			"2026-01-07T07:59:59Z": false,
			"2026-01-07T10:59:59Z": true,
			"2026-01-07T11:30:00Z": true,
			"2026-01-07T12:59:59Z": true,
			"2026-01-07T13:00:00Z": false,
		},
	},
	{
		name: "longer than the distance of its starts", expression: "* * * * *", duration: "48h", timeZone: "Asia/Kolkata",
		contains: instants{"2026-01-07T07:59:30Z": true},
	},
	{
		// 1 January 2026 is a Thursday, 1 February a Sunday.
		name: "a month's first day, for a week", expression: "@monthly", duration: "168h", timeZone: "America/New_York",
		contains: instants{
			"2026-01-01T04:59:59Z": false,
			"2026-01-01T05:00:00Z": true,
			"2026-01-08T04:59:59Z": true,
			"2026-01-08T05:00:00Z": false,
		},
	},
	{
		name: "leap days only", expression: "0 0 29 2 *", duration: "1h", timeZone: "UTC",
		contains: instants{"2028-02-29T00:30:00Z": true, "2027-02-28T00:30:00Z": false, "2027-03-01T00:30:00Z": false},
	},
}

func TestContains(t *testing.T) {
	for _, test := range containsTests {
		t.Run(test.name, func(t *testing.T) {
			period, err := schedule.Parse(test.expression, test.duration, test.timeZone)
			if err != nil {
				t.Fatal(err)
			}
			for text, want := range test.contains {
				instant, err := time.Parse(time.RFC3339Nano, text)
				if err != nil {
					t.Fatal(err)
				}
				if got := period.Contains(instant); got != want {
					t.Errorf("%s (%s on the wall): got %v, want %v", text, instant.In(mustLoad(t, test.timeZone)).Format(time.TimeOnly), got, want)
				}
			}
		})
	}
}

func mustLoad(t *testing.T, name string) *time.Location {
	t.Helper()
	location, err := schedule.ParseTimeZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

func TestParseRejects(t *testing.T) {
	for _, test := range []struct{ name, expression, duration, timeZone, message string }{
		{"no fields", "", "1h", "UTC", "five fields"},
		{"four fields", "0 0 * *", "1h", "UTC", "five fields"},
		{"seconds", "0 0 0 * * *", "1h", "UTC", "five fields"},
		{"out of range", "60 0 * * *", "1h", "UTC", "five fields"},
		{"a word", "at noon", "1h", "UTC", "five fields"},
		{"unknown macro", "@fortnightly", "1h", "UTC", "five fields"},
		{"at boot", "@reboot", "1h", "UTC", "five fields"},
		{"an interval", "@every 1h", "1h", "UTC", "@every"},
		{"a time zone inside", "TZ=Europe/Berlin 0 0 * * *", "1h", "UTC", "timeZone"},
		{"cron's time zone inside", "CRON_TZ=Europe/Berlin 0 0 * * *", "1h", "UTC", "timeZone"},
		{"only a time zone", "TZ=", "1h", "UTC", "timeZone"},
		{"a date that does not exist", "0 0 31 2 *", "1h", "UTC", "never starts"},
		{"too long", strings.Repeat("0,", 200) + "0 0 * * *", "1h", "UTC", "bytes"},
		{"no duration", "0 0 * * *", "", "UTC", "such as 8h"},
		{"a bare number", "0 0 * * *", "8", "UTC", "such as 8h"},
		{"days", "0 0 * * *", "1d", "UTC", "such as 8h"},
		{"nothing", "0 0 * * *", "0s", "UTC", "from 1s"},
		{"backwards", "0 0 * * *", "-1h", "UTC", "from 1s"},
		{"years", "0 0 * * *", "9000h", "UTC", "8784h"},
		{"no time zone", "0 0 * * *", "1h", "", "IANA"},
		{"an unknown time zone", "0 0 * * *", "1h", "Europe/Atlantis", "IANA"},
		{"the server's own time zone", "0 0 * * *", "1h", "Local", "IANA"},
		{"a path", "0 0 * * *", "1h", "../../etc/localtime", "IANA"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := schedule.Parse(test.expression, test.duration, test.timeZone)
			if err == nil || !strings.Contains(err.Error(), test.message) {
				t.Errorf("got %v, want an error with %q", err, test.message)
			}
		})
	}
}

func TestParseMacros(t *testing.T) {
	for _, macro := range []string{"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"} {
		if _, err := schedule.ParseExpression(macro); err != nil {
			t.Errorf("%s: %v", macro, err)
		}
	}
}

// A period that was accepted can be evaluated at any instant.
func FuzzParse(f *testing.F) {
	f.Add("0 0 * * *", "24h", "UTC")
	f.Add("*/5 9-17 1,15 * mon-fri", "1h30m", "Europe/Berlin")
	f.Add("@yearly", "8784h", "Pacific/Apia")
	f.Add("TZ=", "1h", "UTC")
	f.Fuzz(func(_ *testing.T, expression, duration, timeZone string) {
		period, err := schedule.Parse(expression, duration, timeZone)
		if err != nil {
			return
		}
		period.Contains(time.Date(2026, time.October, 25, 1, 30, 0, 0, time.UTC))
		period.Contains(time.Time{})
	})
}
