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
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// memberCount is how many members an etcd has that serves without one of them.
const memberCount = 3

// Each member of an external etcd, the leader among them, is killed under writes, which go
// on without it, and started again.
func TestAcknowledgedWritesSurviveKillsOfEtcdMembers(t *testing.T) {
	members, err := shared.NewEtcdMembers(t.Context(), shortDirectory(t), memberCount)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		startMember(t, member)
	}
	storage := backend{"members", func(*testing.T) []string { return etcdFlags(members...) }}
	storage.start(t, 1)
	load := startLoad(t, newNamespace(t))
	for _, member := range members {
		load.awaitAcknowledged(t, writesBeforeKill)
		member.Kill()
		load.awaitAcknowledged(t, writesBeforeKill)
		if err := member.Start(); err != nil {
			t.Fatal(err)
		}
		awaitMember(t, member)
	}
	load.awaitAcknowledged(t, writesBeforeKill)
	load.stop()
	load.expectStored(t)
	load.expectServicesFree(t)
}

// awaitMember waits until a member that was started again has what the others have, so that
// these do without another one.
func awaitMember(t *testing.T, member *environment.Etcd) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{member.Endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	eventually(t, "the member of etcd that was killed serves again", func(ctx context.Context) string {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		// A read that must be current waits until the member has caught up.
		if _, err := client.Get(ctx, "durability"); err != nil {
			return fmt.Sprintf("%v\n%s", err, member.Process().Tail())
		}
		return ""
	})
}

// kine, which stores in SQLite what is written with the protocol of etcd, is killed under
// writes.
func TestAcknowledgedWritesSurviveKillsOfKine(t *testing.T) {
	store := startKine(t)
	storage := backend{"kine", func(*testing.T) []string { return etcdFlags(store) }}
	storage.start(t, 1)
	load := startLoad(t, newNamespace(t))
	for range *kills {
		load.awaitAcknowledged(t, writesBeforeKill)
		store.Kill()
		if err := store.Start(); err != nil {
			t.Fatal(err)
		}
	}
	load.awaitAcknowledged(t, writesBeforeKill)
	load.stop()
	load.expectStored(t)
	load.expectServicesFree(t)
}
