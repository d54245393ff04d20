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

	"github.com/spf13/pflag"
)

// Limits has the flags of what clients can take of a resolver.
type Limits struct {
	HeldBytes             int64
	HeldBytesPerService   int64
	HeaderBytes           int
	Connections           int
	ConnectionsPerService int
	ConnectionsPerClient  int
}

func defaultLimits() Limits {
	return Limits{
		HeldBytes:           256 << 20,
		HeldBytesPerService: 128 << 20,
		HeaderBytes:         64 << 10,
	}
}

func (l *Limits) addFlags(flags *pflag.FlagSet) {
	flags.Int64Var(&l.HeldBytes, "max-held-bytes", l.HeldBytes, "Bytes of memory that the requests and connections of all services may use. Over it, the newest requests of the service that uses most get 503 or are reset.")
	flags.Int64Var(&l.HeldBytesPerService, "max-held-bytes-per-service", l.HeldBytesPerService, "Bytes of memory that the requests and connections of one service may use; more get 503 or are reset. 0: only --max-held-bytes bounds them.")
	flags.IntVar(&l.HeaderBytes, "max-header-bytes", l.HeaderBytes, "Maximum size of the header section of an HTTP message; larger ones get 431.")
	flags.IntVar(&l.Connections, "max-connections", l.Connections, "Connections of clients that may be open; more are reset. 0: as many as the limit of open files of the process (RLIMIT_NOFILE) leaves room for, with one connection to a pod for each.")
	flags.IntVar(&l.ConnectionsPerService, "max-connections-per-service", l.ConnectionsPerService, "Connections of clients that may be open to one service; more are reset. In any case a service may have at most as many as are still free of --max-connections, so that other services always have some. 0: only that.")
	flags.IntVar(&l.ConnectionsPerClient, "max-connections-per-client", l.ConnectionsPerClient, "Connections that may be open from one client address; more are reset. An ingress is one address. 0: no limit.")
}

func (l *Limits) validate() []error {
	var errs []error
	for _, size := range []struct {
		flag       string
		value, min int64
	}{
		{"--max-held-bytes", l.HeldBytes, 1 << 20},
		{"--max-held-bytes-per-service", l.HeldBytesPerService, 0},
		{"--max-header-bytes", int64(l.HeaderBytes), 4 << 10},
		{"--max-connections", int64(l.Connections), 0},
		{"--max-connections-per-service", int64(l.ConnectionsPerService), 0},
		{"--max-connections-per-client", int64(l.ConnectionsPerClient), 0},
	} {
		if size.value < size.min {
			errs = append(errs, fmt.Errorf("%s: %d is less than %d", size.flag, size.value, size.min))
		}
	}
	return errs
}
