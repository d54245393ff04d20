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
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// backend is a storage. prepare starts what it needs and returns the flags of its servers.
type backend struct {
	name    string
	prepare func(t *testing.T) (flags []string)
}

var (
	hostCluster = backend{"cluster", func(*testing.T) []string { return []string{"--storage=cluster"} }}
	embedded    = backend{"embedded", func(t *testing.T) []string {
		return []string{"--storage=embedded", "--data-dir=" + filepath.Join(shortDirectory(t), "data")}
	}}
	externalEtcd = backend{"etcd", func(t *testing.T) []string { return etcdFlags(startEtcd(t)) }}
	kine         = backend{"kine", func(t *testing.T) []string { return etcdFlags(startKine(t)) }}
)

// startEtcd starts an etcd of one member, which ends after the test.
func startEtcd(t *testing.T) *environment.Etcd {
	t.Helper()
	etcd := shared.NewEtcd(shortDirectory(t))
	startMember(t, etcd)
	return etcd
}

// startKine starts a kine, which ends after the test.
func startKine(t *testing.T) *environment.Etcd {
	t.Helper()
	started, err := shared.NewKine(shortDirectory(t))
	if err != nil {
		t.Fatal(err)
	}
	startMember(t, started)
	return started
}

// startMember starts a member of an etcd, which ends after the test.
func startMember(t *testing.T, member *environment.Etcd) {
	t.Helper()
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := member.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func etcdFlags(members ...*environment.Etcd) []string {
	endpoints := make([]string, 0, len(members))
	for _, member := range members {
		endpoints = append(endpoints, member.Endpoint)
	}
	return []string{"--storage=etcd", "--etcd-servers=" + strings.Join(endpoints, ",")}
}

// start starts servers on the storage in place of the shared one, which is back after the
// test.
func (b backend) start(t *testing.T, count int) []*environment.Server {
	t.Helper()
	if err := shared.Server.Stop(t.Context()); err != nil {
		t.Fatalf("stopping the server: %v", err)
	}
	t.Cleanup(func() {
		if err := shared.Server.Start(context.Background()); err != nil {
			t.Errorf("starting the server for the tests that follow: %v", err)
		}
	})
	flags := b.prepare(t)
	if b.name != hostCluster.name {
		flags = slices.Concat(flags, newStoreRecord(t))
	}
	servers := make([]*environment.Server, 0, count)
	for i := range count {
		servers = append(servers, startReplica(t, fmt.Sprintf("%s-%d", nameOfTest(t), i), flags...))
	}
	return servers
}

// newStoreRecord returns the flags of servers whose store is not that of the shared server.
func newStoreRecord(t *testing.T) []string {
	t.Helper()
	flag, err := shared.NewStoreRecord(t.Context(), nameOfTest(t)+"-store")
	if err != nil {
		t.Fatal(err)
	}
	// The cluster may have objects of the shared server.
	return []string{flag, "--accept-new-store=unrecorded"}
}

// nameOfTest is the name of a test as one of an object.
func nameOfTest(t *testing.T) string {
	t.Helper()
	return strings.NewReplacer("/", "-", "_", "-").Replace(strings.ToLower(t.Name()))
}

// startReplica starts a server, which ends after the test.
func startReplica(t *testing.T, name string, flags ...string) *environment.Server {
	t.Helper()
	replica, err := shared.NewReplica(t.Context(), name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.RemoveReplica(context.Background(), replica); err != nil {
			t.Error(err)
		}
		if t.Failed() && replica.Process() != nil {
			t.Log(replica.Process().Tail())
		}
	})
	start(t, replica)
	return replica
}

func start(t *testing.T, server *environment.Server) {
	t.Helper()
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(errors.Join(errors.New("starting a server"), err))
	}
}
