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

package options

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Timeouts has the flags of how long clients are waited for.
type Timeouts struct {
	Header   time.Duration
	Body     time.Duration
	Idle     time.Duration
	Sniff    time.Duration
	Greeting time.Duration
}

func defaultTimeouts() Timeouts {
	return Timeouts{
		Header: 10 * time.Second,
		// Long enough for a phone that lost its network for a while.
		Body: 5 * time.Minute,
		// Longer than the idle timeout of load balancers (the longest in wide use is
		// 600 s), so that the resolver never closes a connection just as the load
		// balancer sends a request on it.
		Idle:  620 * time.Second,
		Sniff: 100 * time.Millisecond,
		// Longer than a health check that only connects.
		Greeting: time.Second,
	}
}

func (t *Timeouts) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&t.Header, "header-timeout", t.Header, "Time a client may take to send the header section of an HTTP request once it began.")
	flags.DurationVar(&t.Body, "body-timeout", t.Body, "Time a client may send nothing in the middle of the body of an HTTP/1.x request before it gets 408. 0: no limit.")
	flags.DurationVar(&t.Idle, "idle-timeout", t.Idle, "Time an HTTP connection may be without a request. It should be longer than that of the proxy or load balancer in front.")
	flags.DurationVar(&t.Sniff, "sniff-timeout", t.Sniff, "Time a client may send nothing before the protocol counts as one in which the server speaks first. Only for Service ports whose appProtocol does not determine it.")
	flags.DurationVar(&t.Greeting, "greeting-timeout", t.Greeting, "Time a client of a protocol in which the server speaks first may send nothing before it wakes a sleeping target. It should be longer than health checks that only connect. See docs/protocols.md for the values of appProtocol that change it.")
}

func (t *Timeouts) validate() []error {
	var errs []error
	for _, positive := range []struct {
		flag  string
		value time.Duration
	}{
		{"--header-timeout", t.Header},
		{"--idle-timeout", t.Idle},
		{"--sniff-timeout", t.Sniff},
	} {
		if positive.value <= 0 {
			errs = append(errs, fmt.Errorf("%s: %s is not positive", positive.flag, positive.value))
		}
	}
	return append(errs, notNegative("--body-timeout", t.Body, "--greeting-timeout", t.Greeting)...)
}

// notNegative returns an error for each negative duration of pairs of flags and
// values.
func notNegative(pairs ...any) []error {
	var errs []error
	for i := 0; i < len(pairs); i += 2 {
		if value := pairs[i+1].(time.Duration); value < 0 {
			errs = append(errs, fmt.Errorf("%s: %s is negative", pairs[i], value))
		}
	}
	return errs
}
