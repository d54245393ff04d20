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
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

const (
	// revisionBump is by how much the revision of a restored store is ahead of its
	// snapshot, so that watches and caches with later versions than the snapshot's
	// list again. It is more than what is written between two backups.
	revisionBump = 1_000_000_000
	// dialTimeout bounds connecting to the store that is saved.
	dialTimeout = 5 * time.Second
)

// SnapshotStatus describes a snapshot.
type SnapshotStatus = snapshot.Status

// SaveSnapshot writes all objects of a running store to a file, as they are at one
// moment. The file must not exist. The store serves meanwhile.
func SaveSnapshot(ctx context.Context, dataDir, file string) error {
	socket, err := clientSocketOf(dataDir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no store is running on %s: run this where the server runs, with its --data-dir", dataDir)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already: choose another file, or remove it", file)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: dialTimeout, Logger: zap.NewNop()}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, config, file); err != nil {
		return fmt.Errorf("saving a snapshot of the store in %s to %s: %w", dataDir, file, err)
	}
	return nil
}

// RestoreSnapshot makes the store of a data directory that has none from a
// snapshot. Versions of objects are far ahead of those in the snapshot, so that no
// client takes an older object for a newer one.
func RestoreSnapshot(ctx context.Context, file, dataDir string) (err error) {
	dataDir, err = filepath.Abs(dataDir)
	if err != nil {
		return fmt.Errorf("finding the data directory %q: %w", dataDir, err)
	}
	if err := makePrivateDir(dataDir); err != nil {
		return err
	}
	lock, err := lockDir(ctx, dataDir, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	config := newConfig(zap.NewNop(), dataDir, "", maxQuotaBytes)
	if _, err := os.Stat(config.Dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has a store already: move %s away, or choose another --data-dir", dataDir, config.Dir)
	}
	peers := make([]string, 0, len(config.AdvertisePeerUrls))
	for _, peer := range config.AdvertisePeerUrls {
		peers = append(peers, peer.String())
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                config.Name,
		OutputDataDir:       config.Dir,
		PeerURLs:            peers,
		InitialCluster:      config.InitialCluster,
		InitialClusterToken: config.InitialClusterToken,
		RevisionBump:        revisionBump,
		MarkCompacted:       true,
	})
	if err != nil {
		return fmt.Errorf("restoring %s to %s: %w", file, dataDir, err)
	}
	return nil
}

// ReadSnapshot returns what a snapshot holds. It fails when the file is damaged.
func ReadSnapshot(file string) (SnapshotStatus, error) {
	status, err := snapshot.NewV3(zap.NewNop()).Status(file)
	if err != nil {
		return status, fmt.Errorf("reading the snapshot %s: %w", file, err)
	}
	return status, nil
}

// clientSocketOf returns the socket of the store of a data directory.
func clientSocketOf(dataDir string) (string, error) {
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return "", fmt.Errorf("finding the data directory %q: %w", dataDir, err)
	}
	return filepath.Join(dataDir, "sockets", "client"), nil
}
