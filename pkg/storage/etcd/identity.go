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

// Package etcd has what the storages of k8s.io/apiserver in an etcd lack: the identity of
// the store.
//
// It knows nothing of the objects in it. Begin with Identity.
package etcd

import (
	"context"
	"fmt"
	"path"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// identityKey is where the identity is stored, below the prefix of all objects.
const identityKey = "store-identity"

// Identity is the identity of what is stored in an etcd below a prefix. Make it with
// NewIdentity and close it after its last use. It is safe for concurrent use.
type Identity struct {
	client *clientv3.Client
	// root is what the keys of everything that is stored begin with, key that of the
	// identity.
	root, key string
}

var _ guard.Store = &Identity{}

// NewIdentity returns the identity of a store. It does not wait for the etcd.
func NewIdentity(config *storagebackend.Config) (*Identity, error) {
	files := config.Transport
	clientConfig := clientv3.Config{Endpoints: files.ServerList, Logger: zap.NewNop()}
	if files.CertFile != "" || files.KeyFile != "" || files.TrustedCAFile != "" {
		info := transport.TLSInfo{CertFile: files.CertFile, KeyFile: files.KeyFile, TrustedCAFile: files.TrustedCAFile}
		var err error
		if clientConfig.TLS, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("reading the certificates for the etcd %v: %w", files.ServerList, err)
		}
	}
	client, err := clientv3.New(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("creating the client of the etcd %v: %w", files.ServerList, err)
	}
	root := strings.TrimSuffix(path.Join("/", config.Prefix), "/") + "/"
	return &Identity{client: client, root: root, key: root + identityKey}, nil
}

// Close closes the connection.
func (i *Identity) Close() error {
	if err := i.client.Close(); err != nil {
		return fmt.Errorf("closing the client of the etcd: %w", err)
	}
	return nil
}

// Identity implements guard.Store.
func (i *Identity) Identity(ctx context.Context) (string, error) {
	found, err := i.client.Get(ctx, i.key)
	if err != nil {
		return "", fmt.Errorf("reading the identity of the store from the etcd %v: %w", i.client.Endpoints(), err)
	}
	if len(found.Kvs) == 0 {
		return "", nil
	}
	return string(found.Kvs[0].Value), nil
}

// IsEmpty implements guard.Store.
func (i *Identity) IsEmpty(ctx context.Context) (bool, error) {
	found, err := i.client.Get(ctx, i.root, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(2))
	if err != nil {
		return false, fmt.Errorf("reading from the etcd %v: %w", i.client.Endpoints(), err)
	}
	for _, pair := range found.Kvs {
		if string(pair.Key) != i.key {
			return false, nil
		}
	}
	return true, nil
}

// ReplaceIdentity implements guard.Store. Its transaction has the form of those that
// k8s.io/apiserver makes: kine knows no others.
func (i *Identity) ReplaceIdentity(ctx context.Context, from, to string) error {
	if err := i.replaceIdentity(ctx, from, to); err != nil {
		return fmt.Errorf("writing the identity of the store to the etcd %v: %w", i.client.Endpoints(), err)
	}
	return nil
}

func (i *Identity) replaceIdentity(ctx context.Context, from, to string) error {
	found, err := i.client.Get(ctx, i.key)
	if err != nil {
		return err
	}
	current, revision := "", int64(0)
	if len(found.Kvs) > 0 {
		current, revision = string(found.Kvs[0].Value), found.Kvs[0].ModRevision
	}
	if current != from {
		return guard.ErrChanged
	}
	replaced, err := i.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(i.key), "=", revision)).
		Then(clientv3.OpPut(i.key, to)).
		Else(clientv3.OpGet(i.key)).
		Commit()
	if err != nil {
		return err
	}
	if !replaced.Succeeded {
		return guard.ErrChanged
	}
	return nil
}
