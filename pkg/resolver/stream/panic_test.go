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
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/dial"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/resolvertest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket/sockettest"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

// panicking is a connection whose reads panic.
type panicking struct{ *sockettest.Conn }

func (panicking) Read([]byte) (int, error) { panic("a fault") }

// A panic while bytes are forwarded is reported, and resets both connections.
func TestPanicInADirectionEndsBoth(t *testing.T) {
	for _, from := range []string{"client", "pod"} {
		t.Run(from, func(t *testing.T) {
			var reported atomic.Int32
			tasks := task.New(func(task.Panic) { reported.Add(1) })
			client, here := sockettest.Pipe()
			pod, there := sockettest.Pipe()
			var a, b socket.Conn = here, there
			if from == "client" {
				a = panicking{here}
			} else {
				b = panicking{there}
			}
			if joined := Join(tasks, a, b, nil); !errors.Is(joined.ABroke, errPanicked) {
				t.Errorf("the result is %+v", joined)
			}
			for name, peer := range map[string]*sockettest.Conn{"client": client, "pod": pod} {
				if got, err := io.ReadAll(peer); err == nil {
					t.Errorf("the %s reads %q, and the end", name, got)
				}
			}
			if got := reported.Load(); got != 1 {
				t.Errorf("%d panics are reported", got)
			}
		})
	}
}

// A panic once a pod was chosen gives its place there back.
func TestPanicWithALeaseGivesItBack(t *testing.T) {
	svc := service.New(service.Options{
		Namespace: "shop", Name: "cart", PublicService: "cart",
		Config: &service.Config{Mode: v1alpha1.ModeProxy, HoldTimeout: time.Minute, Limits: hold.Limits{MaxPending: 100}},
		Budget: memory.NewBudget(memory.Limits{Process: 1 << 30}), Logger: klog.Background(),
		Dialer: dial.New(dial.Options{Connected: func(pod *net.TCPConn) {
			pod.Close()
			panic("a fault")
		}}),
	})
	defer svc.Close()
	svc.SetPods(resolvertest.Pods(resolvertest.Listen(t, echo)))
	server, tasks := New(Options{}), task.New(func(task.Panic) {})
	served := make(chan struct{})
	address := resolvertest.Listen(t, func(conn *net.TCPConn) {
		defer close(served)
		tasks.Run(func() { conn.Close() }, func() {
			server.Serve(t.Context(), conn, []byte("hello"), Destination{Service: svc, Port: service.Port{Number: 5432}})
		})
	})
	resolvertest.Dial(t, address)
	<-served
	if svc.Queue().InFlight() != 0 || svc.Traffic().Open() != 0 || svc.Memory().Used() != 0 {
		t.Errorf("%d are in flight, %d count as use, %d bytes are taken", svc.Queue().InFlight(), svc.Traffic().Open(), svc.Memory().Used())
	}
}
