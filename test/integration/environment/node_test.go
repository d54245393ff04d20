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

package environment

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
)

// The test would fail on a machine whose gateway accepts connections for other addresses,
// if packets reached the gateway.
func TestNothingRespondsForPodsThatDoNotRun(t *testing.T) {
	for _, number := range []uint32{1, 256, 65_535} {
		address := net.JoinHostPort(NoAddress(number), "10000")
		connection, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
		if err == nil {
			connection.Close()
		}
		if !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("connecting to %s ends with %v, want a failure in the kernel", address, err)
		}
	}
}
