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
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/memory"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/sniff"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/task"
)

const (
	// heldOverhead is the memory of a held connection without the bytes that were read.
	heldOverhead = 4 << 10
	// forwardedBytes is the memory of a forwarded connection: the connection to the pod
	// and two goroutines.
	forwardedBytes = 6 << 10
)

// Options configure a Server.
type Options struct {
	// Greeting is how long a client that may wait for the greeting of the server may
	// send nothing before it wakes a sleeping target. 0: it wakes the target at once.
	Greeting time.Duration
	// Tasks runs the goroutines that forward bytes. Optional.
	Tasks *task.Runner
}

// Server forwards connections without parsing their bytes. It is safe for concurrent
// use.
type Server struct {
	options Options
}

// New returns a Server.
func New(options Options) *Server { return &Server{options: options} }

// Destination is the destination of a connection.
type Destination struct {
	// Service and Port are those of the connection.
	Service *service.Service
	Port    service.Port
	// Greets is the side that speaks first.
	Greets sniff.Greeting
	// Spoken is called when a byte was sent on the connection, or it woke the target.
	// Optional.
	Spoken func()
	// Other reports whether the first bytes of a client are of a protocol with a server
	// of its own. Nil: they never are.
	Other func(first []byte) bool
}

// Serve serves one connection of a client until it ends, and closes it. The bytes of
// initial were already read from it. A connection that gets no pod is reset. Closing
// client ends Serve early.
//
// The first bytes of a client that was silent at first may be of another protocol. Then
// Serve leaves the connection open and returns those bytes.
//
// A connection to a passive port does not wake the target and does not count as use.
//
// A connection on which neither side has sent a byte does not wake the target, does not
// count as use and does not count for maxConcurrencyPerPod. The exception is a client
// that may wait for the greeting of a sleeping target, which wakes it after
// Options.Greeting.
func (s *Server) Serve(ctx context.Context, client *net.TCPConn, initial []byte, to Destination) []byte {
	waiting, err := socket.NewTCP(client)
	if err != nil {
		client.Close()
		return nil
	}
	c := &conn{
		server: s, client: client, waiting: waiting, initial: initial, to: to, began: time.Now(),
		record: accesslog.Record{
			Namespace: to.Service.Namespace,
			Service:   to.Service.PublicService,
			Port:      to.Port.Number,
			Protocol:  accesslog.Stream,
			Client:    client.RemoteAddr().String(),
			Received:  time.Now(),
		},
		charge:  to.Service.Memory().Charge(),
		passive: to.Service.Config().Passive.Port(to.Port.Number),
	}
	// These also run after a panic.
	defer c.charge.Release()
	defer c.release()
	defer c.uncount()
	other, err := c.serve(ctx)
	if other {
		return c.initial
	}
	if err != nil {
		// An unknown protocol has no error message; a reset works in all protocols. It
		// fails only when the connection is broken already.
		_ = client.SetLinger(0)
	}
	client.Close()
	c.record.Ended = time.Now()
	to.Service.Finish(&c.record)
	return nil
}

// conn is a connection of a client. It is owned by the goroutine that serves it.
type conn struct {
	server *Server
	client *net.TCPConn
	// waiting is the client's connection as a Conn.
	waiting *socket.TCP
	// initial has the bytes of the client that were not sent to the pod yet.
	initial []byte
	to      Destination
	began   time.Time
	record  accesslog.Record
	charge  memory.Charge

	// pod and lease are set while there is a pod. Silent is true for a silent lease.
	pod    *net.TCPConn
	lease  hold.Lease
	leased bool
	silent bool
	// passive is true when the port is passive: the connection does not count as use.
	passive bool
	// counted is true while the connection is not silent. It counts as use of the target
	// then, unless it is passive.
	counted bool
}

// count makes the connection one on which a byte was sent.
func (c *conn) count() {
	if c.counted {
		return
	}
	c.counted = true
	if !c.passive {
		c.to.Service.Traffic().Begin()
	}
	if c.to.Spoken != nil {
		c.to.Spoken()
	}
}

func (c *conn) uncount() {
	if !c.counted {
		return
	}
	c.counted = false
	if !c.passive {
		c.to.Service.Traffic().End()
	}
}

// release closes the connection to the pod, if any, and ends the lease.
func (c *conn) release() {
	if c.pod != nil {
		c.pod.Close()
		c.pod = nil
	}
	if c.leased {
		c.leased = false
		c.lease.Release()
	}
}

// serve serves the connection. It returns true when the first bytes are of another
// protocol.
func (c *conn) serve(ctx context.Context) (other bool, err error) {
	if len(c.initial) == 0 {
		if other, err = c.serveSilent(ctx); other || err != nil || c.record.Outcome != "" {
			return other, err
		}
	}
	if c.pod == nil {
		c.count()
		if err := c.connect(ctx, false); err != nil {
			return false, c.failed(err)
		}
	}
	return false, c.forward(ctx, nil)
}

// failed records why there is no pod for the connection.
func (c *conn) failed(err error) error {
	if errors.Is(err, hold.ErrClientGone) {
		c.record.Outcome = accesslog.ClientGone
		if !c.counted {
			c.record.Outcome = accesslog.Silent
		}
		return err
	}
	c.record.Outcome, c.record.Reason = accesslog.LocalReply, string(localreply.ForError(c.to.Service, err).Reason)
	return err
}

// forward forwards bytes between the client and the pod until the connection ends;
// greeting has the bytes that were already read from the pod.
func (c *conn) forward(ctx context.Context, greeting []byte) error {
	return c.carry(ctx, greeting, func(pod *socket.TCP) Joined {
		return Join(c.server.options.Tasks, c.waiting, pod, nil)
	})
}

// carry calls join to forward bytes between the client and the pod, after the bytes
// that were already read from each have been sent to the other.
func (c *conn) carry(ctx context.Context, greeting []byte, join func(pod *socket.TCP) Joined) error {
	c.record.Outcome = accesslog.Forwarded
	// Both connections are reset when the process ends.
	stop := context.AfterFunc(ctx, func() {
		for _, conn := range []*net.TCPConn{c.client, c.pod} {
			_ = conn.SetLinger(0)
			conn.Close()
		}
	})
	defer stop()
	if err := c.exchange(greeting); err != nil {
		c.record.Outcome, c.record.Reason = accesslog.Failed, err.Error()
		return err
	}
	c.initial = nil
	pod, err := socket.NewTCP(c.pod)
	if err != nil {
		c.record.Outcome, c.record.Reason = accesslog.Failed, err.Error()
		return err
	}
	joined := join(pod)
	c.record.BytesIn += joined.AToB
	c.record.BytesOut += joined.BToA
	switch {
	case joined.BBroke != nil:
		c.record.Outcome, c.record.Reason = accesslog.Failed, "the connection to the pod: "+joined.BBroke.Error()
		return joined.BBroke
	case joined.ABroke != nil && errors.Is(joined.ABroke, net.ErrClosed):
		c.record.Outcome, c.record.Reason = accesslog.Failed, "the resolver closed the connection"
		return joined.ABroke
	case joined.ABroke != nil:
		c.record.Outcome = accesslog.ClientGone
		return joined.ABroke
	case c.silent:
		c.record.Outcome = accesslog.Silent
	}
	return nil
}

// exchange sends each side the bytes that were already read from the other.
func (c *conn) exchange(greeting []byte) error {
	if _, err := c.pod.Write(c.initial); err != nil {
		return fmt.Errorf("sending to the pod: %w", err)
	}
	if _, err := c.client.Write(greeting); err != nil {
		return fmt.Errorf("sending to the client: %w", err)
	}
	c.record.BytesIn += int64(len(c.initial))
	c.record.BytesOut += int64(len(greeting))
	return nil
}
