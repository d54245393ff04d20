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

package elastiservice

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/fairqueue"
)

const (
	// The pauses between the attempts for one ElastiService: 50, 100, 200 ms …
	// up to 30 s, so that an ElastiService that keeps failing costs little.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// queue holds the keys of ElastiServices that are to be synced. Urgent keys overtake
// the others: when the resolvers change, every sleeping Service is written, and a
// switch of a mode must not wait for them. Each namespace gets its turn: pods of one
// whose readiness flaps behind thousands of Services delay their own.
type queue = fairqueue.WorkQueue[types.NamespacedName]

// newQueue returns an empty queue. waiting is called with the number of keys that wait,
// whenever that has changed. It may be nil.
func newQueue(clock clock.WithTicker, waiting func(keys int)) *queue {
	return fairqueue.NewWorkQueue(fairqueue.WorkQueueOptions[types.NamespacedName]{
		Clock: clock, NamespaceOf: fairqueue.NamespaceOf, FirstRetry: firstRetry, LastRetry: lastRetry, Waiting: waiting,
	})
}
