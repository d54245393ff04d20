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

package environment

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// hostRevisionBump is by how much RestoreHost puts the revision of the control plane ahead of
// its backup. It is more than what the tests write.
const hostRevisionBump = 1_000_000_000

// SaveHost writes all objects of the control plane to a file, as they are at one moment.
func (e *Environment) SaveHost(ctx context.Context, file string) error {
	config := clientv3.Config{Endpoints: []string{e.plane.etcdEndpoint}, DialTimeout: startTimeout, Logger: zap.NewNop()}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, config, file); err != nil {
		return fmt.Errorf("saving the etcd of the control plane: %w", err)
	}
	return nil
}

// RestoreHost puts the control plane back to what SaveHost wrote, as the documentation of
// Kubernetes says: all of its processes are stopped meanwhile, and the revision is bumped.
// It returns when kube-apiserver is ready again. Server goes on running.
func (e *Environment) RestoreHost(ctx context.Context, file string) error {
	return e.restoreHost(ctx, file, hostRevisionBump)
}

// RestoreHostToItsRevision does the same, but leaves the revision as it is in the backup:
// resource versions go back.
func (e *Environment) RestoreHostToItsRevision(ctx context.Context, file string) error {
	return e.restoreHost(ctx, file, 0)
}

func (e *Environment) restoreHost(ctx context.Context, file string, bump uint64) error {
	controllers := e.plane.has("kube-controller-manager")
	if err := e.plane.stop(); err != nil {
		return err
	}
	e.plane.processes = nil
	if err := restoreEtcd(e.plane.etcdDirectory(), file, bump); err != nil {
		return err
	}
	if err := e.plane.startEtcd(); err != nil {
		return err
	}
	if err := e.plane.startAPIServer(ctx); err != nil {
		return err
	}
	if !controllers {
		return nil
	}
	return e.plane.startControllerManager()
}

// restoreEtcd replaces what the etcd of a directory stores. All revisions before a bump are
// compacted.
func restoreEtcd(directory, file string, bump uint64) error {
	data := filepath.Join(directory, "data")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("removing the data of etcd: %w", err)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath:        file,
		Name:                etcdName,
		OutputDataDir:       data,
		PeerURLs:            []string{etcdPeer(directory)},
		InitialCluster:      etcdName + "=" + etcdPeer(directory),
		InitialClusterToken: "restored",
		RevisionBump:        bump,
		MarkCompacted:       bump > 0,
	})
	if err != nil {
		return fmt.Errorf("restoring the etcd of the control plane: %w", err)
	}
	return nil
}
