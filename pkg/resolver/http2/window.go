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

package http2

import (
	"golang.org/x/net/http2"
)

// heldWindow is the flow control of a connection while there is no pod. The
// resolver grants nothing but what it takes from the client and forgets, so that
// when a pod is chosen and sent what was kept, both count the same.
type heldWindow struct {
	// left is how many bytes of bodies the client may still send.
	left int64
	// grants is what the client has granted for the bodies of responses beyond the
	// window that every connection begins with.
	grants int64
}

// receive counts a DATA frame.
func (w *heldWindow) receive(bytes int) error {
	w.left -= int64(bytes)
	if w.left < 0 {
		return connError{http2.ErrCodeFlowControl, "more than the window of the connection was sent"}
	}
	return nil
}

// grant counts a WINDOW_UPDATE of the client for the connection.
func (w *heldWindow) grant(increment uint32) error {
	w.grants += int64(increment)
	if w.grants+initialWindow > maxWindow {
		return connError{http2.ErrCodeFlowControl, "the window of the connection is too large"}
	}
	return nil
}

// spend takes bytes of a response of the resolver out of what the client granted,
// and reports whether it may send them. They never come out of the window that
// the connection begins with, as a pod will count on all of it.
func (w *heldWindow) spend(bytes int) bool {
	if int64(bytes) > w.grants {
		return false
	}
	w.grants -= int64(bytes)
	return true
}

// credit gives the client back the bytes of a body that no pod gets.
func (c *conn) credit(bytes uint32) {
	if bytes == 0 {
		return
	}
	if c.pod == nil {
		c.window.left += int64(bytes)
	}
	c.reply = appendWindowUpdate(c.reply, 0, bytes)
}
