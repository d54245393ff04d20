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

package durability

import (
	"testing"
)

// writesBeforeKill is how many writes are acknowledged between two kills. Each writer is in
// the middle of another one then.
const writesBeforeKill = 3 * writerCount

// The server is killed again and again while it writes.
func TestAcknowledgedWritesSurviveKills(t *testing.T) {
	for _, storage := range []backend{hostCluster, embedded, externalEtcd, kine} {
		t.Run(storage.name, func(t *testing.T) {
			server := storage.start(t, 1)[0]
			load := startLoad(t, newNamespace(t))
			for range *kills {
				load.awaitAcknowledged(t, writesBeforeKill)
				server.Kill()
				start(t, server)
			}
			load.awaitAcknowledged(t, writesBeforeKill)
			load.stop()
			load.expectStored(t)
			if *kills > 0 && load.failed.Load() == 0 {
				t.Error("no write failed: no kill was in the middle of one, and this shows nothing")
			}
			load.expectServicesFree(t)
		})
	}
}
