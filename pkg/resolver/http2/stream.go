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
	"sync/atomic"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
)

// stream is one request. The goroutine that reads from the client owns it until
// it is forwarded, and then mu of the connection guards it.
type stream struct {
	id     uint32
	record accesslog.Record
	// held is what is kept while there is no pod, or while it may have to be sent
	// to another.
	held *heldStream
	// lease counts it as in flight while it is forwarded.
	lease hold.Lease
	// kept is how many bytes were counted for it while it is forwarded. The usage of the
	// connection has them.
	kept int64
	// counted is true when it counts as traffic of the service.
	counted bool
	// grpc and isHEAD are true for a gRPC and for a HEAD request.
	grpc, isHEAD bool
	// clientEnded and podEnded are true when a side has sent its last frame.
	clientEnded, podEnded bool
	// responded is true when the fields of the final response have passed.
	responded bool
}

// heldStream is what is kept of a stream while it is held.
type heldStream struct {
	waiter hold.Waiter
	// passiveReply is the reply to a request that does not wake the target, for when no
	// pod can take it any more. Nil for other requests.
	passiveReply *localreply.Reply
	// resolved is true when the wait is over.
	resolved atomic.Bool
	// inLine is true from when it joined the queue until what came of that was
	// seen.
	inLine   bool
	deadline time.Time
	fields   packed
	// body is DATA frames as they came.
	body []byte
	// received is how many bytes of body flow control counts.
	received uint32
	// trailers follow the body when trailed is true.
	trailers packed
	trailed  bool
	// grant is the sum of the client's WINDOW_UPDATEs.
	grant int64
}

// size returns how many bytes are kept of what the client sent.
func (h *heldStream) size() int { return cap(h.fields) + cap(h.body) + cap(h.trailers) }

// heldStreamBytes is about what a held stream keeps besides its fields and its
// body, and its share of what its connection keeps.
const heldStreamBytes = 4 << 10
