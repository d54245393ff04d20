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

package service

import (
	"sync"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
)

// keepAwake keeps the target of a queue awake for a time. Its zero value does not.
type keepAwake struct {
	mu sync.Mutex
	// timer and end are set while the target is kept awake.
	timer *time.Timer
	end   func()
}

// extend keeps the target awake for at least a period from now on.
func (k *keepAwake) extend(queue *hold.Queue, period time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	} else {
		k.end = queue.KeepAwake()
	}
	var timer *time.Timer
	timer = time.AfterFunc(period, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		// extend may have been called in between.
		if k.timer == timer {
			k.finish()
		}
	})
	k.timer = timer
}

func (k *keepAwake) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
		k.finish()
	}
}

// finish stops keeping the target awake. It must be called with mu held.
func (k *keepAwake) finish() {
	k.end()
	k.timer, k.end = nil, nil
}
