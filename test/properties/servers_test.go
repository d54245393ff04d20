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

package properties

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// acceptFlag has the identity of the store that a server may give up.
const acceptFlag = "--accept-new-store="

// servers are two replicas of the server on an etcd of their own.
type servers struct {
	control  *environment.Environment
	replicas [2]*environment.Server
	etcd     *environment.Etcd
	// data is what the etcd stores, backup a copy of it, if there is one.
	data, backup string
}

// startServers starts them in place of the server that the environment has.
func startServers(t *testing.T, control *environment.Environment) (*servers, error) {
	t.Helper()
	if err := control.Server.Stop(t.Context()); err != nil {
		return nil, err
	}
	// Sockets have short paths.
	directory, err := os.MkdirTemp("", "elasti-properties-")
	if err != nil {
		return nil, err
	}
	s := &servers{control: control, etcd: control.NewEtcd(directory), data: filepath.Join(directory, "data"), backup: filepath.Join(directory, "backup")}
	t.Cleanup(func() {
		errs := []error{}
		for _, replica := range s.replicas {
			if replica != nil {
				errs = append(errs, control.RemoveReplica(context.Background(), replica))
			}
		}
		errs = append(errs, s.etcd.Stop(), os.RemoveAll(directory))
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
	if err := s.etcd.Start(); err != nil {
		return nil, err
	}
	recorded, err := control.RecordedStore(t.Context(), environment.StoreRecordName)
	if err != nil {
		return nil, err
	}
	for number := range s.replicas {
		replica, err := control.NewReplica(t.Context(), fmt.Sprintf("replica-%d", number),
			"--storage=etcd", "--etcd-servers="+s.etcd.Endpoint,
			"--shutdown-delay-duration=1s", "--convergence-time=1s", acceptFlag+recorded)
		if err != nil {
			return nil, err
		}
		s.replicas[number] = replica
		if err := replica.Start(t.Context()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// whileStopped stops the servers, calls a function that changes their store, and starts
// them.
func (s *servers) whileStopped(ctx context.Context, do func() error) error {
	for _, replica := range s.replicas {
		if err := replica.Stop(ctx); err != nil {
			return err
		}
	}
	if err := s.whileStoreIsAway(do); err != nil {
		return err
	}
	recorded, err := s.control.RecordedStore(ctx, environment.StoreRecordName)
	if err != nil {
		return err
	}
	for _, replica := range s.replicas {
		// The changed store may be another one.
		replica.Flags = slices.DeleteFunc(slices.Clone(replica.Flags), func(flag string) bool { return strings.HasPrefix(flag, acceptFlag) })
		replica.Flags = append(replica.Flags, acceptFlag+recorded)
		if err := replica.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *servers) whileStoreIsAway(do func() error) error {
	return errors.Join(s.etcd.Stop(), do(), s.etcd.Start())
}

// save makes the backup.
func (s *servers) save() error {
	return errors.Join(os.RemoveAll(s.backup), os.CopyFS(s.backup, os.DirFS(s.data)))
}

// restore puts the backup in the place of the store.
func (s *servers) restore() error {
	return errors.Join(os.RemoveAll(s.data), os.CopyFS(s.data, os.DirFS(s.backup)), private(s.data))
}

// empty deletes all stored objects.
func (s *servers) empty() error { return os.RemoveAll(s.data) }

// hasBackup reports whether there is a backup.
func (s *servers) hasBackup() bool {
	_, err := os.Stat(s.backup)
	return err == nil
}

// private removes the permissions of other users, which etcd requires.
func private(directory string) error {
	return filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return os.Chmod(path, 0o700)
	})
}

func (w *testbed) logServers(t *testing.T) {
	t.Helper()
	for _, replica := range w.servers.replicas {
		t.Log(replica.Process().Tail())
	}
}
