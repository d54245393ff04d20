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

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// eventBytes is how many bytes of events the kernel keeps for a reader that
	// is late; beyond it they are lost.
	eventBytes = 64 << 20
	// clockSlack is how much earlier an event may seem to be than what caused it.
	clockSlack = 50 * time.Millisecond
	// firstEvent bounds the wait until the kernel tells of connections.
	firstEvent = 10 * time.Second
)

// destinations tells where connections to Services went. It follows the events
// of the kernel's table of connections; a connection that is refused is in the
// table itself for too short a time to be asked for. Safe for concurrent use.
type destinations struct {
	command *exec.Cmd
	// complaints are what conntrack says while it runs, such as that it lost events.
	complaints bytes.Buffer
	ended      chan struct{}

	mu sync.Mutex
	// known are the connections of each client port, oldest first.
	known map[endpoints][]translation
}

// endpoints are what a client knows of its connection.
type endpoints struct {
	port    int
	service string
}

// translation is one connection: since when it is there, and the address that
// the Service's stood for.
type translation struct {
	at          time.Time
	destination string
}

// followDestinations starts to follow the connections to a port. Stop ends it.
func followDestinations(ctx context.Context, servicePort int) (*destinations, error) {
	d := &destinations{known: map[endpoints][]translation{}, ended: make(chan struct{})}
	d.command = exec.CommandContext(ctx, "conntrack", "--event", "--event-mask", "NEW", "--proto", "tcp", "--orig-port-dst", strconv.Itoa(servicePort),
		"--output", "timestamp", "--buffer-size", strconv.Itoa(eventBytes))
	d.command.Stderr = &d.complaints
	output, err := d.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.command.Start(); err != nil {
		return nil, fmt.Errorf("following the connections with conntrack: %w", err)
	}
	go func() {
		defer close(d.ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			d.add(lines.Text())
		}
	}()
	return d, nil
}

// awaitFirst connects to an address of a Service until the kernel has told of
// such a connection.
func (d *destinations) awaitFirst(ctx context.Context, address string) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, firstEvent, true, func(context.Context) (bool, error) {
		if connection, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			connection.Close()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.known) > 0, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the first connection that conntrack tells of: %w", err)
	}
	return nil
}

// stop ends the following, and returns an error when it was not complete.
func (d *destinations) stop() error {
	// An error means that it has ended already.
	_ = d.command.Process.Kill()
	<-d.ended
	_ = d.command.Wait()
	for line := range strings.Lines(d.complaints.String()) {
		if strings.Contains(line, "ENOBUFS") {
			return errors.New("the kernel told of more connections than conntrack could read; send fewer requests a second")
		}
	}
	return nil
}

// newConnection finds, in a line of conntrack, when a connection began, its
// client's address, the Service's, the client's port, and whom the answers come from.
var newConnection = regexp.MustCompile(`^\[(\d+)\.(\d+)\s*\].*? src=\S+ dst=(\S+) sport=(\d+) dport=\d+ .*?src=(\S+) `)

// add adds the connection that a line tells of.
func (d *destinations) add(line string) {
	found := newConnection.FindStringSubmatch(line)
	if found == nil {
		return
	}
	seconds, secondsErr := strconv.ParseInt(found[1], 10, 64)
	microseconds, microsecondsErr := strconv.ParseInt(found[2], 10, 64)
	port, portErr := strconv.Atoi(found[4])
	if errors.Join(secondsErr, microsecondsErr, portErr) != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := endpoints{port: port, service: found[3]}
	d.known[key] = append(d.known[key], translation{at: time.Unix(seconds, microseconds*1000), destination: found[5]})
}

// find returns where the connection of a failed request went. It is empty when
// there was none: nobody was behind the Service.
func (d *destinations) find(f failure) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A port is used again after its connection has ended.
	for _, one := range d.known[endpoints{port: f.port, service: f.service}] {
		if !one.at.Before(f.sent.Add(-clockSlack)) {
			return one.destination
		}
	}
	return ""
}
