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

package embedded

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

const (
	// trimAboveBytes is the size from which a database is worth trimming. All
	// of the file is mapped into memory, used or not.
	trimAboveBytes = 16 << 20
	// trimInterval is how often that is checked while the store serves.
	trimInterval = time.Minute
	// compactTimeout bounds dropping the history.
	compactTimeout = time.Minute
)

// dropHistory drops all but the latest state of each object. It must be called
// before the store has clients: they begin with that state.
func (s *Server) dropHistory(ctx context.Context) error {
	if s.etcd.Server.Backend().Size() < trimAboveBytes {
		return nil
	}
	return s.compact(ctx)
}

// trim defragments a database that is mostly unused: what history took before it was dropped.
// Reads and writes wait meanwhile, the longer the more is in use.
func (s *Server) trim(ctx context.Context) error {
	backend := s.etcd.Server.Backend()
	before, used := backend.Size(), backend.SizeInUse()
	if before < trimAboveBytes || used > before/2 {
		return nil
	}
	// The copy that this writes must fit on the volume.
	if total, free, err := s.volume(); err != nil || used > free-reserveFor(total) {
		return err
	}
	if err := backend.Defrag(); err != nil {
		return fmt.Errorf("defragmenting the database: %w", err)
	}
	klog.FromContext(ctx).Info("Defragmented the database", "before", before, "after", backend.Size())
	return nil
}
