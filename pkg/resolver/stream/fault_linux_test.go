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
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
)

// A fault of the resolver's machine does not end a connection on which nothing was sent: one
// to a pod is made again until that succeeds.
func TestSilentConnectionOutlivesAFaultOfThisMachine(t *testing.T) {
	if !resolvertest.InOwnProcess(t, false) {
		return
	}
	f := newFixture(t, tuning{greeting: time.Hour})
	pod := resolvertest.Listen(t, echo)
	conn := f.Client()
	f.silent(1, 0)
	restore := resolvertest.LimitFiles(t, 0)
	f.Pods(pod)
	f.silent(0, 0)
	restore()
	f.silent(0, 1)
	f.unused()
	send(t, conn, "hello")
	expect(t, conn, "hello")
	conn.Close()
	if record := f.Record(1); record.Outcome != accesslog.Forwarded {
		t.Errorf("the record is %+v", record)
	}
}
