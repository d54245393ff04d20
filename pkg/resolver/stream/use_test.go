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
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// A connection to a passive port does not count as use of an awake target, whatever is sent
// on it. One to another port does, until it ends.
func TestConnectionToAPassivePortIsNoUse(t *testing.T) {
	for name, test := range map[string]struct {
		port int32
		want bool
	}{
		"a passive port": {5432, false},
		"another port":   {9187, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tuning{change: func(c *service.Config) {
				c.Passive = passive.Compile(&v1alpha1.PassiveSpec{Ports: []int32{test.port}})
			}})
			f.Pods(resolvertest.Listen(t, echo))
			conn := f.Client()
			send(t, conn, "hello")
			expect(t, conn, "hello")
			traffic := f.Service.Traffic()
			if used := traffic.Open() == 1; used != test.want {
				t.Errorf("it counts as use: %t", used)
			}
			conn.Close()
			<-f.handedBack
			if traffic.Open() != 0 || traffic.Ended() != test.want {
				t.Errorf("%d connections count as use, one did: %t", traffic.Open(), traffic.Ended())
			}
		})
	}
}

// A server that has closed its writing side without a byte does not keep the target awake,
// while the client that woke it sends nothing either.
func TestFinishedServerIsNoUseWhileTheClientIsSilent(t *testing.T) {
	f := newFixture(t, tuning{})
	got := make(chan string, 1)
	conn := f.Client()
	f.Held(1)
	f.Pods(resolvertest.Listen(t, func(conn *net.TCPConn) {
		_ = conn.CloseWrite()
		all, _ := io.ReadAll(conn)
		got <- string(all)
	}))
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("the client got %q and %v", rest, err)
	}
	f.silent(0, 1)
	f.used(0)
	send(t, conn, "hello")
	f.used(1)
	conn.Close()
	if all := <-got; all != "hello" {
		t.Errorf("the server got %q", all)
	}
	f.used(0)
}
