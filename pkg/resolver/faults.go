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

package resolver

import (
	"fmt"
	"math"
	"syscall"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// panicked reports a panic of what served a connection or worked for a service. The
// connection or the attempt ends, everything else goes on.
func (r *Resolver) panicked(p task.Panic) {
	r.metrics.Panicked()
	r.options.Logger.Error(fmt.Errorf("panic: %v", p.Value), "A panic ended a connection or an attempt", "stack", string(p.Stack))
}

// faulted reports a fault of this machine that kept a connection from being
// made.
func (r *Resolver) faulted(fault *localfault.Error) {
	r.metrics.LocalFault(fault)
}

const (
	// maxReserve bounds the file descriptors that are not for connections of
	// clients and to pods: those of probes, of pipes that bytes are moved through, of
	// the health and metrics ports, and of the process itself. A process that may have few files keeps a quarter
	// of them.
	maxReserve = 2048
	// filesPerConnection is how many a connection of a client takes: its own, and
	// one for the connection to a pod.
	filesPerConnection = 2
)

// connectionLimits returns how many connections of clients may be open.
func (r *Resolver) connectionLimits() connectionLimits {
	limits := connectionLimits{
		process:    func() int { return r.options.Limits.Connections },
		perService: r.options.Limits.ConnectionsPerService,
		perClient:  r.options.Limits.ConnectionsPerClient,
	}
	if r.options.Limits.Connections > 0 {
		return limits
	}
	files := maxFiles()
	if files == 0 {
		limits.process = func() int { return math.MaxInt32 }
		return limits
	}
	reserve := min(files/4, maxReserve)
	limits.process = func() int { return max(1, (files-reserve-r.listeners.Count())/filesPerConnection) }
	return limits
}

// maxFiles returns how many files the process may have open, or 0 when there is
// no limit that matters.
func maxFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return 0
	}
	return int(limit.Cur)
}
