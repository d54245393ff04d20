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

// Drain has the flags of moving clients away from a resolver, or from a port of it.
type Drain struct {
	HTTP2MoveDelay time.Duration
	ServeGrace     time.Duration
	PortLinger     time.Duration
	Delay          time.Duration
	Timeout        time.Duration
}

func defaultDrain() Drain {
	return Drain{
		HTTP2MoveDelay: time.Second,
		ServeGrace:     time.Minute,
		PortLinger:     30 * time.Second,
		Delay:          3 * time.Second,
		Timeout:        60 * time.Second,
	}
}

func (d *Drain) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&d.HTTP2MoveDelay, "http2-move-delay", d.HTTP2MoveDelay, "Time after which HTTP/2 clients that still reach an awake target through the resolver get a GOAWAY, to reconnect to its pods.")
	flags.DurationVar(&d.ServeGrace, "serve-mode-grace", d.ServeGrace, "Time after resolvers left the path of a Service, because its target is awake, for which its proxy ports still serve new connections of clients that have not followed yet. After that new connections are reset, until resolvers are in the path again. 0: they are always served.")
	flags.DurationVar(&d.PortLinger, "port-linger", d.PortLinger, "Time for which a proxy port that is no longer assigned still accepts connections and forwards them to the last known pods.")
	flags.DurationVar(&d.Delay, "shutdown-delay", d.Delay, "After SIGTERM, and once no EndpointSlice lists this resolver any more, connections are accepted until none has come for this long: by then all nodes send them elsewhere. The resolver waits for both for 30s at most, or for this long if it is longer.")
	flags.DurationVar(&d.Timeout, "shutdown-timeout", d.Timeout, "Time held requests and open connections have to finish after that. The grace period of the pod must be longer than all of these together.")
}

func (d *Drain) validate() []error {
	errs := notNegative("--http2-move-delay", d.HTTP2MoveDelay, "--serve-mode-grace", d.ServeGrace, "--port-linger", d.PortLinger, "--shutdown-delay", d.Delay)
	if d.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--shutdown-timeout: %s is not positive", d.Timeout))
	}
	return errs
}
