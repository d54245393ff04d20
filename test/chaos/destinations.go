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
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// rememberedFor is how long the kernel remembers a connection.
	rememberedFor = time.Hour
	// rulesTable is the table of netfilter that the rules are in.
	rulesTable = "elasti-chaos"
	// rules has the kernel note each first packet of a connection to a Service's
	// port: the Service's address, the client's port, and the address that the
	// packet goes to after kube-proxy's rules. Connections are numbered, so that a
	// port that is used again is another element. Neither the table of connections
	// nor its events would do: an entry whose connection is refused is deleted at once,
	// and events are lost on a busy machine.
	rules = `table ip ` + rulesTable + ` {
  set connections {
    type ipv4_addr . inet_service . ipv4_addr . mark
    size 2000000
    flags dynamic,timeout
    timeout %[1]s
  }
  chain postrouting {
    type filter hook postrouting priority filter
    tcp flags & (syn | ack) == syn ct original proto-dst %[2]d ct mark 0 ct mark set numgen inc mod 1000000000 offset 1
    tcp flags & (syn | ack) == syn ct original proto-dst %[2]d add @connections { ct original ip daddr . ct original proto-src . ip daddr . ct mark timeout %[1]s }
  }
}
`
)

// destinations tells where connections to Services went.
type destinations struct {
	// known are the connections of each client port, oldest first.
	known map[endpoints][]translation
}

// uses are when each client port was used for a connection to a Service.
type uses map[endpoints][]time.Time

// endpoints are what a client knows of its connection.
type endpoints struct {
	port    int
	service string
}

// translation is one connection: its number, which grows, and the address that
// the Service's stood for.
type translation struct {
	number      uint64
	destination string
}

// noteDestinations has the kernel note the connections to a port of Services.
// The returned function ends that, and returns what was noted.
func noteDestinations(ctx context.Context, servicePort int) (stop func(context.Context) (*destinations, error), err error) {
	// A table that was left behind would be added to.
	_ = exec.CommandContext(ctx, "nft", "delete", "table", "ip", rulesTable).Run()
	add := exec.CommandContext(ctx, "nft", "--file", "-")
	add.Stdin = strings.NewReader(fmt.Sprintf(rules, rememberedFor, servicePort))
	if output, err := add.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("adding rules that note connections: %w: %s", err, output)
	}
	return func(ctx context.Context) (*destinations, error) {
		output, listErr := exec.CommandContext(ctx, "nft", "list", "set", "ip", rulesTable, "connections").Output()
		deleteErr := exec.CommandContext(ctx, "nft", "delete", "table", "ip", rulesTable).Run()
		if err := errors.Join(listErr, deleteErr); err != nil {
			return nil, fmt.Errorf("reading the connections that were noted: %w", err)
		}
		noted, err := parseDestinations(string(output))
		if err == nil && len(noted.known) == 0 {
			err = errors.New("the kernel has noted no connection")
		}
		return noted, err
	}, nil
}

// element is one connection as nft prints it.
var element = regexp.MustCompile(`([0-9.]+) \. ([0-9]+) \. ([0-9.]+) \. 0x([0-9a-f]+) `)

// parseDestinations reads what nft printed.
func parseDestinations(output string) (*destinations, error) {
	d := &destinations{known: map[endpoints][]translation{}}
	lines := bufio.NewScanner(strings.NewReader(output))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		for _, found := range element.FindAllStringSubmatch(lines.Text(), -1) {
			port, portErr := strconv.Atoi(found[2])
			number, numberErr := strconv.ParseUint(found[4], 16, 32)
			if err := errors.Join(portErr, numberErr); err != nil {
				return nil, fmt.Errorf("reading %q: %w", found[0], err)
			}
			key := endpoints{port: port, service: found[1]}
			d.known[key] = append(d.known[key], translation{number: number, destination: found[3]})
		}
	}
	for _, connections := range d.known {
		slices.SortFunc(connections, func(one, other translation) int { return cmp.Compare(one.number, other.number) })
	}
	return d, lines.Err()
}

// find returns where the connection of a failed request went, given all uses of
// its port: connections of a port follow each other, so that the third use is the
// third connection. It is empty when that is not known: when some uses came to
// nothing because no endpoint was behind the Service, or made two connections, and the
// connections of the port went to different addresses, or there was none.
func (d *destinations) find(f failure, all uses) string {
	key := endpoints{port: f.port, service: f.service}
	connections, sent := d.known[key], all[key]
	slices.SortFunc(sent, time.Time.Compare)
	at := slices.Index(sent, f.sent)
	switch {
	case at < 0 || len(connections) == 0:
		return ""
	case len(connections) == len(sent):
		return connections[at].destination
	case errors.Is(f.err, syscall.ECONNREFUSED):
		// It may be the one that came to nothing.
		return ""
	}
	for _, connection := range connections {
		if connection.destination != connections[0].destination {
			return ""
		}
	}
	return connections[0].destination
}
