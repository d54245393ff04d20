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

package etcd

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

// likeKubernetes rejects transactions of other forms than those that k8s.io/apiserver
// makes, as kine does.
type likeKubernetes struct {
	clientv3.KV
	t *testing.T
}

// Txn implements clientv3.KV.
func (k likeKubernetes) Txn(ctx context.Context) clientv3.Txn {
	return &checkedTransaction{Txn: k.KV.Txn(ctx), t: k.t}
}

type checkedTransaction struct {
	clientv3.Txn
	t                   *testing.T
	conditions          []clientv3.Cmp
	succeeding, failing []clientv3.Op
}

// If implements clientv3.Txn.
func (c *checkedTransaction) If(conditions ...clientv3.Cmp) clientv3.Txn {
	c.conditions = conditions
	c.Txn = c.Txn.If(conditions...)
	return c
}

// Then implements clientv3.Txn.
func (c *checkedTransaction) Then(operations ...clientv3.Op) clientv3.Txn {
	c.succeeding = operations
	c.Txn = c.Txn.Then(operations...)
	return c
}

// Else implements clientv3.Txn.
func (c *checkedTransaction) Else(operations ...clientv3.Op) clientv3.Txn {
	c.failing = operations
	c.Txn = c.Txn.Else(operations...)
	return c
}

// Commit implements clientv3.Txn.
func (c *checkedTransaction) Commit() (*clientv3.TxnResponse, error) {
	comparesRevision := false
	if len(c.conditions) == 1 {
		compared := c.conditions[0].GetCompare()
		comparesRevision = compared.GetTarget() == etcdserverpb.Compare_MOD && compared.GetResult() == etcdserverpb.Compare_EQUAL
	}
	puts := len(c.succeeding) == 1 && c.succeeding[0].IsPut()
	gets := len(c.failing) == 1 && c.failing[0].IsGet()
	if !comparesRevision || !puts || !gets {
		c.t.Errorf("a transaction is not a put at a revision, or else a get: it has %d conditions, %d operations, or else %d", len(c.conditions), len(c.succeeding), len(c.failing))
	}
	return c.Txn.Commit()
}

// kine, which stores in a SQL database what is written with the protocol of etcd, knows no
// transactions but those of k8s.io/apiserver.
func TestIdentityIsWrittenAsKubernetesWrites(t *testing.T) {
	store, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	identity, err := NewIdentity(&storagebackend.Config{Prefix: "/registry", Transport: storagebackend.TransportConfig{ServerList: []string{store.Endpoint()}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := identity.Close(); err != nil {
			t.Error(err)
		}
	})
	identity.client.KV = likeKubernetes{identity.client.KV, t}
	for _, replacement := range [][2]string{{"", "first"}, {"first", "second"}} {
		if err := identity.ReplaceIdentity(t.Context(), replacement[0], replacement[1]); err != nil {
			t.Error(err)
		}
	}
}
