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

// Package socket asks the kernel what the net package does not tell about a
// TCP connection: whether the peer has gone while nobody reads, and how much
// of what was written has reached it.
package socket

import (
	"net"
	"time"
)

// KeepAlive returns how peers that have nothing to acknowledge are asked whether
// they are there: one whose node is gone is noticed within a minute.
func KeepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}
}
