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
	"io"
	"net"
	"testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// passivePort makes the port of a fixture passive.
func passivePort(c *service.Config) {
	c.Passive = passive.Compile(&v1alpha1.PassiveSpec{Ports: []int32{5432}})
}

// TestPassiveConnectionThatWaitsForABusyPodWakesNothing connects to a pod that serves
// another connection and is removed meanwhile.
func TestPassiveConnectionThatWaitsForABusyPodWakesNothing(t *testing.T) {
	f := newFixture(t, tuning{change: func(c *service.Config) {
		passivePort(c)
		c.Limits.MaxConcurrencyPerPod = 1
	}})
	f.Pods(resolvertest.Listen(t, echo))
	served := f.Client()
	send(t, served, "stats")
	expect(t, served, "stats")
	waits := f.Client()
	send(t, waits, "stats")
	f.Held(1)
	f.Pods()
	expectReset(t, waits, "")
	if f.Service.Queue().NeedsPod() {
		t.Error("it wakes the target")
	}
	if record := f.Record(1); record.Outcome != accesslog.LocalReply || record.Reason != string(localreply.ReasonAsleep) {
		t.Errorf("the record is %+v", record)
	}
	f.unused()
	send(t, served, "more")
	expect(t, served, "more")
}

// TestPassiveConnectionsReachAPodThatDidNotAcceptOnce connects to a ready pod that did not
// accept a connection, while nothing else connects to it.
func TestPassiveConnectionsReachAPodThatDidNotAcceptOnce(t *testing.T) {
	f := newFixture(t, tuning{initial: "stats", change: passivePort})
	f.Pods(resolvertest.Listen(t, echo))
	lease, ok := f.Service.Queue().TryTake("")
	if !ok {
		t.Fatal("there is no pod")
	}
	lease.ConnectionRefused()
	resolvertest.Eventually(t, func() bool {
		// There is room for a number of connections only.
		for len(f.handedBack) > 0 {
			<-f.handedBack
		}
		conn, err := net.Dial("tcp", f.Address)
		if err != nil {
			// It was reset at once.
			return false
		}
		defer conn.Close()
		got := make([]byte, len("stats"))
		_, err = io.ReadFull(conn, got)
		return err == nil && string(got) == "stats"
	})
	if f.Service.Queue().NeedsPod() {
		t.Error("a connection wakes the target")
	}
}
