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
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"
)

func TestAKillExplainsOnlyWhatMetIt(t *testing.T) {
	at := time.Now()
	d := disturbance{kills: []kill{{at: at, address: "10.244.0.7"}}}
	reset := fmt.Errorf("reading: %w", syscall.ECONNRESET)
	for name, test := range map[string]struct {
		failure   failure
		explained bool
	}{
		"held when it was killed":       {failure{destination: "10.244.0.7", sent: at.Add(-time.Minute), ended: at.Add(time.Second), err: reset}, true},
		"refused a moment later":        {failure{destination: "10.244.0.7", sent: at.Add(time.Second), ended: at.Add(time.Second), err: syscall.ECONNREFUSED}, true},
		"closed without response":       {failure{destination: "10.244.0.7", sent: at, ended: at.Add(time.Second), err: io.EOF}, true},
		"refused when all should know":  {failure{destination: "10.244.0.7", sent: at.Add(addressRemoval), ended: at.Add(addressRemoval), err: syscall.ECONNREFUSED}, false},
		"broken before":                 {failure{destination: "10.244.0.7", sent: at.Add(-time.Minute), ended: at.Add(-time.Second), err: reset}, false},
		"with another resolver":         {failure{destination: "10.244.0.8", sent: at, ended: at, err: reset}, false},
		"not known with which":          {failure{sent: at, ended: at, err: reset}, false},
		"a response, but with an error": {failure{destination: "10.244.0.7", sent: at, ended: at, err: errors.New("status 503")}, false},
		"no response until it gave up":  {failure{destination: "10.244.0.7", sent: at, ended: at.Add(time.Minute), err: errors.New("timeout")}, false},
	} {
		if explained := len(d.unexplained([]failure{test.failure})) == 0; explained != test.explained {
			t.Errorf("%s: explained is %t", name, explained)
		}
	}
}

func TestDestinationsAreThoseOfTheirUse(t *testing.T) {
	d, err := parseDestinations(`table ip elasti-chaos {
	set connections {
		type ipv4_addr . inet_service . ipv4_addr . mark
		size 2000000
		flags dynamic,timeout
		timeout 1h
		elements = { 10.96.3.4 . 40001 . 10.244.0.8 . 0x0000002a timeout 1h expires 59m9s1ms,
			     10.96.3.4 . 40001 . 10.244.0.7 . 0x00000001 timeout 1h expires 59m250ms,
			     10.96.3.4 . 40003 . 10.244.0.6 . 0x00000003 timeout 1h expires 59m250ms }
	}
}`)
	if err != nil {
		t.Fatal(err)
	}
	first := time.Unix(1700000000, 0)
	second := first.Add(5 * time.Second)
	all := uses{
		{port: 40001, service: "10.96.3.4"}: {second, first},
		{port: 40003, service: "10.96.3.4"}: {first, second},
	}
	for name, test := range map[string]struct {
		failure failure
		want    string
	}{
		"the first of its port":              {failure{port: 40001, service: "10.96.3.4", sent: first}, "10.244.0.7"},
		"the second":                         {failure{port: 40001, service: "10.96.3.4", sent: second}, "10.244.0.8"},
		"one of two, of which one was noted": {failure{port: 40003, service: "10.96.3.4", sent: first, err: io.EOF}, "10.244.0.6"},
		"one that may have come to nothing":  {failure{port: 40003, service: "10.96.3.4", sent: first, err: syscall.ECONNREFUSED}, ""},
		"another port":                       {failure{port: 40002, service: "10.96.3.4", sent: first}, ""},
		"another Service":                    {failure{port: 40001, service: "10.96.3.5", sent: first}, ""},
	} {
		if got := d.find(test.failure, all); got != test.want {
			t.Errorf("%s: it went to %q, want %q", name, got, test.want)
		}
	}
}
