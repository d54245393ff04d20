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

package http1

import (
	"context"
	"time"
)

// sweepInterval is how often the connections are checked. For no longer is one kept
// that the pod has closed, or that keeps a pod from ending.
const sweepInterval = 5 * time.Second

// Run closes the connections to pods that are kept for the next request and cannot
// carry it any more, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, c := range s.all() {
				s.options.Tasks.Run(func() { c.tcp.Reset() }, c.sweep)
			}
		}
	}
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

func (c *conn) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resting && c.pod != nil && (c.pod.ends || !c.pod.tcp.Idle() || !c.pod.lease.Usable()) {
		c.server.closePod(c.pod)
		c.pod = nil
	}
}
