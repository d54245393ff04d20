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

package stream

import (
	"sync/atomic"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// The service that holds most sheds for a connection of another service that gets a pod.
func TestForwardingShedsWhatTheHeaviestHolds(t *testing.T) {
	f := newFixture(t, tuning{})
	const process = 1 << 30
	var other *memory.Account
	var held atomic.Int64
	held.Store(process)
	other = f.Budget.Open(func(bytes int64) int64 {
		other.Give(bytes)
		held.Add(-bytes)
		return bytes
	})
	if err := other.Take(process); err != nil {
		t.Fatal(err)
	}
	defer func() { other.Give(held.Load()) }()
	f.Pods(resolvertest.Listen(t, echo))
	conn := f.Client()
	send(t, conn, "hello")
	expect(t, conn, "hello")
	if held.Load() == process {
		t.Error("the other service still holds all")
	}
}
