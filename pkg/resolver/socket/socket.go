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

// Package socket reads the state of TCP connections from the kernel that the net
// package does not expose: whether the peer has closed the connection while no
// goroutine reads, and how much of the written bytes the peer has received.
//
// It knows nothing of what is sent. Begin with TCP.
package socket

import (
	"net"
	"time"
)

// KeepAlive returns the configuration of TCP keep-alive. It detects the failure of the
// peer's node within a minute when there is nothing to acknowledge.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}
}
