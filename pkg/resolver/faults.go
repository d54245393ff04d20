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

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// panicked tells of a panic of what served a connection. The connection ends,
// everything else goes on.
func (r *Resolver) panicked(p task.Panic) {
	r.metrics.Panicked()
	r.options.Logger.Error(fmt.Errorf("panic: %v", p.Value), "Ended a connection whose handling panicked", "stack", string(p.Stack))
}

// faulted tells of a fault of this machine that kept a connection from being
// made.
func (r *Resolver) faulted(fault *localfault.Error) {
	r.metrics.LocalFault(fault)
}
