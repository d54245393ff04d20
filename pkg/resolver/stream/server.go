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
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localfault"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/socket"
)

// heldOverhead is what a held connection keeps besides the bytes that were
// read from it.
const heldOverhead = 4 << 10

// Serve serves one connection of a client to one port of a service, until it
// ends, and closes it. The bytes of initial were already read from it. A
// connection that cannot be given a pod is reset. Whoever wants it to end
// sooner closes client.
//
// A client that has said nothing yet may still speak before the pod does, and
// foreign, which may be nil, tells whether its first bytes are of a protocol
// that has better hands. Then Serve leaves the connection open and returns them.
func Serve(ctx context.Context, client *net.TCPConn, initial []byte, svc *service.Service, port service.Port, foreign func([]byte) bool) []byte {
	record := &accesslog.Record{
		Namespace: svc.Namespace,
		Service:   svc.PublicService,
		Port:      port.Number,
		Protocol:  accesslog.Stream,
		Client:    client.RemoteAddr().String(),
		Received:  time.Now(),
	}
	svc.Traffic().Begin()
	defer svc.Traffic().End()
	words, err := serve(ctx, client, initial, svc, port, foreign, record)
	if words != nil {
		return words
	}
	if err != nil {
		// Nothing can be said in a protocol that is not known; a reset is
		// understood in all. It fails only when the connection is broken already.
		_ = client.SetLinger(0)
	}
	client.Close()
	record.Ended = time.Now()
	svc.Finish(record)
	return nil
}

func serve(ctx context.Context, client *net.TCPConn, initial []byte, svc *service.Service, port service.Port, foreign func([]byte) bool, record *accesslog.Record) (words []byte, err error) {
	lease, pod, initial, err := connect(ctx, client, initial, svc, port, foreign, record)
	switch {
	case errors.Is(err, hold.ErrClientGone):
		record.Outcome = accesslog.ClientGone
		return nil, err
	case err != nil:
		record.Outcome, record.Reason = accesslog.Answered, string(localreply.ForError(svc, err).Reason)
		return nil, err
	case pod == nil:
		return initial, nil
	}
	defer lease.Release()
	defer pod.Close()
	// When only the process wants to end, both sides must see it.
	stop := context.AfterFunc(ctx, func() { client.Close(); pod.Close() })
	defer stop()

	var greeting []byte
	if len(initial) == 0 && foreign != nil {
		if initial, greeting, err = firstWords(client, pod); err != nil {
			record.Outcome, record.Reason = accesslog.Failed, err.Error()
			return nil, err
		}
		if len(greeting) == 0 && len(initial) > 0 && foreign(initial) {
			return initial, nil
		}
	}
	record.Outcome = accesslog.Forwarded
	if err := exchange(client, pod, initial, greeting); err != nil {
		record.Outcome, record.Reason = accesslog.Failed, err.Error()
		return nil, err
	}
	record.BytesIn, record.BytesOut = Join(client, pod)
	record.BytesIn += int64(len(initial))
	record.BytesOut += int64(len(greeting))
	return nil, nil
}

// exchange sends each side what was already read from the other.
func exchange(client, pod *net.TCPConn, initial, greeting []byte) error {
	if _, err := pod.Write(initial); err != nil {
		return fmt.Errorf("sending to the pod: %w", err)
	}
	if _, err := client.Write(greeting); err != nil {
		return fmt.Errorf("sending to the client: %w", err)
	}
	return nil
}

// connect waits for a pod and connects to it. It returns what the client has
// said by then, and no pod when that is foreign.
func connect(ctx context.Context, client *net.TCPConn, initial []byte, svc *service.Service, port service.Port, foreign func([]byte) bool, record *accesslog.Record) (hold.Lease, *net.TCPConn, []byte, error) {
	lease, ok := svc.Queue().TryTake(port.Name)
	again := false
	for {
		if !ok {
			var err error
			lease, err = wait(client, initial, foreign != nil, svc, port, record, again)
			if errors.Is(err, hold.ErrSpoke) {
				if initial = readOnce(client); len(initial) == 0 {
					return hold.Lease{}, nil, nil, hold.ErrClientGone
				}
				if foreign(initial) {
					return hold.Lease{}, nil, initial, nil
				}
				again = true
				continue
			}
			if err != nil {
				return hold.Lease{}, nil, initial, err
			}
		}
		record.Released = time.Now()
		record.Pod = lease.Pod.Name
		pod, err := lease.Dial(ctx)
		if err == nil {
			return lease, pod, initial, nil
		}
		if localfault.Of(err) != nil {
			lease.Release()
			return hold.Lease{}, nil, initial, err
		}
		lease.Refuse()
		ok, again = false, true
	}
}

// wait waits in line. With sniffed, the first words of a client that has said
// nothing end it: only then is it known whether they are foreign.
func wait(client *net.TCPConn, initial []byte, sniffed bool, svc *service.Service, port service.Port, record *accesslog.Record, again bool) (hold.Lease, error) {
	record.Held = true
	conn, err := socket.NewTCP(client)
	if err != nil {
		return hold.Lease{}, hold.ErrClientGone
	}
	waiter := hold.ConnWaiter{
		Conn:     conn,
		Port:     port.Name,
		Bytes:    heldOverhead + int64(cap(initial)),
		Deadline: record.Received.Add(svc.Config().HoldTimeout),
		// A client that has sent something and finished wants an answer; one
		// that has sent nothing is gone.
		HalfCloses:  func() bool { return len(initial) > 0 || conn.Unread() > 0 },
		UntilSpoken: sniffed && len(initial) == 0,
	}
	lease, cold, err := waiter.Wait(svc.Queue(), again)
	record.WakeAnswered, record.EndpointReady = cold.WakeAnswered, cold.EndpointReady
	return lease, err
}
