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

import "testing"

const wrkOutput = `Running 1s test @ http://127.0.0.1:8398/
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     6.47ms    8.81ms  43.79ms   84.24%
    Req/Sec     1.45k     0.90k    3.53k    90.00%
  Latency Distribution
     50%    2.71ms
     75%   10.10ms
     90%   19.80ms
     99%   36.77ms
  1531 requests in 1.06s, 222.77KB read
Requests/sec:   1447.59
Transfer/sec:    210.64KB
`

const h2loadOutput = `finished in 1.04s, 3621.00 req/s, 240.65KB/s
requests: 3621 total, 3653 started, 3621 done, 3621 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 3621 2xx, 0 3xx, 0 4xx, 0 5xx
                     min         max         mean         sd        +/- sd
time for request:       83us     63.32ms      8.58ms     12.59ms    88.10%
time for connect:      173us      3.91ms      1.12ms      1.85ms    75.00%
`

func TestOutputOfSourcesOfLoad(t *testing.T) {
	http1, err := parseLoad(wrkOutput, wrkRate, wrk99, "most")
	if err != nil || http1 != (loadResult{rate: 1447.59, latency: 36.77, part: "most"}) {
		t.Errorf("wrk measured %+v (%v)", http1, err)
	}
	http2, err := parseLoad(h2loadOutput, h2loadRate, h2loadMost, "all")
	if err != nil || http2 != (loadResult{rate: 3621, latency: 63.32, part: "all"}) {
		t.Errorf("h2load measured %+v (%v)", http2, err)
	}
	if result := h2loadResult.FindStringSubmatch(h2loadOutput); len(result) != 5 || result[1] != "3621" || result[2] != "0" {
		t.Errorf("the result of h2load is %q", result)
	}
	if _, err := parseLoad("nothing", wrkRate, wrk99, ""); err == nil {
		t.Error("nothing was measured, and there is no error")
	}
}

func TestTrafficOfOneStream(t *testing.T) {
	for output, want := range map[string]float64{
		h2loadOutput: 240.65 / (1 << 10),
		"finished in 1.04s, 0.96 req/s, 984.60MB/s": 984.6,
		"finished in 1.04s, 0.96 req/s, 1.50GB/s":   1536,
		"finished in 1.04s, 0.96 req/s, 524288B/s":  0.5,
	} {
		if got, err := parseTraffic(output); err != nil || got != want {
			t.Errorf("%q are %v MiB/s (%v), want %v", output, got, err, want)
		}
	}
	if _, err := parseTraffic("nothing"); err == nil {
		t.Error("nothing was measured, and there is no error")
	}
}

func TestAnonymousMemory(t *testing.T) {
	if got, err := anonymousKiB("VmRSS:\t  123456 kB\nRssAnon:\t   98765 kB\nRssFile:\t 1 kB\n"); err != nil || got != 98765 {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := anonymousKiB("VmRSS:\t  123456 kB\n"); err == nil {
		t.Error("there is none, and no error")
	}
}
