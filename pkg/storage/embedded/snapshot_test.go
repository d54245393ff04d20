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
	"os"
	"path/filepath"
	"testing"
)

func TestSnapshotIsRestoredWithLaterVersions(t *testing.T) {
	dataDir := t.TempDir()
	file := filepath.Join(t.TempDir(), "snapshot")
	server, stopServer := startStoppable(t, Options{DataDir: dataDir})
	put(t, server, "key", "saved")
	if err := SaveSnapshot(t.Context(), dataDir, file); err != nil {
		t.Fatal(err)
	}
	put(t, server, "key", "later")
	revision := server.etcd.Server.KV().Rev()
	stopServer()

	status, err := ReadSnapshot(file)
	if err != nil || status.TotalKey == 0 {
		t.Errorf("the snapshot is %+v (%v), want one with keys", status, err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if err := RestoreSnapshot(t.Context(), file, restored); err != nil {
		t.Fatal(err)
	}
	server, stopServer = startStoppable(t, Options{DataDir: restored})
	defer stopServer()
	if value := get(t, server, "key"); value != "saved" {
		t.Errorf("the restored value is %q", value)
	}
	if after := server.etcd.Server.KV().Rev(); after <= revision {
		t.Errorf("the restored store is at revision %d, clients have seen %d", after, revision)
	}
	put(t, server, "key", "again")
}

func TestInvalidSnapshotsAreRejectedWithWhatToDo(t *testing.T) {
	dataDir := t.TempDir()
	file := filepath.Join(t.TempDir(), "snapshot")
	expectError(t, SaveSnapshot(t.Context(), dataDir, file), dataDir, "--data-dir")

	_, stopServer := startStoppable(t, Options{DataDir: dataDir})
	if err := SaveSnapshot(t.Context(), dataDir, file); err != nil {
		t.Fatal(err)
	}
	expectError(t, SaveSnapshot(t.Context(), dataDir, file), file, "exists already")
	expectError(t, RestoreSnapshot(t.Context(), file, dataDir), dataDir, "in use")
	stopServer()
	expectError(t, RestoreSnapshot(t.Context(), file, dataDir), dataDir, "has a store already")

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	scramble(content[len(content)/2:])
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	expectError(t, RestoreSnapshot(context.Background(), file, filepath.Join(t.TempDir(), "restored")), file)
}
