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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestDataSurvivesARestart(t *testing.T) {
	dataDir := t.TempDir()
	server := start(t, dataDir)
	put(t, server, "key", "value")
	stop(t, server)

	server = start(t, dataDir)
	defer stop(t, server)
	if value := get(t, server, "key"); value != "value" {
		t.Errorf("after the restart the value is %q", value)
	}
}

func TestSocketOfAKilledProcessIsReplaced(t *testing.T) {
	dataDir := t.TempDir()
	stop(t, start(t, dataDir))
	socket := filepath.Join(dataDir, "sockets", "client")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(t, dataDir)
	defer stop(t, server)
	put(t, server, "key", "value")
}

func TestStoreInUseIsRejectedAndLeftAlone(t *testing.T) {
	dataDir := t.TempDir()
	server := start(t, dataDir)
	defer stop(t, server)
	_, err := Start(t.Context(), Options{DataDir: dataDir})
	expectError(t, err, dataDir, "in use by another process", "--data-dir")
	put(t, server, "key", "value")
}

func TestDirectoryThatCannotBeMadeIsRejected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dataDir := range []string{file, filepath.Join(file, "below")} {
		_, err := Start(t.Context(), Options{DataDir: dataDir})
		expectError(t, err, dataDir, "--data-dir")
	}
}

func TestPathThatIsTooLongForASocketIsRejected(t *testing.T) {
	dataDir := filepath.Join(t.TempDir(), strings.Repeat("x", maxSocketPathBytes))
	_, err := Start(t.Context(), Options{DataDir: dataDir})
	expectError(t, err, dataDir, "too long", "--data-dir")
	if _, err := os.Stat(dataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made all the same (%v)", err)
	}
}

func TestDamagedStoreIsRejected(t *testing.T) {
	for _, test := range []struct {
		name, file string
		damage     func(content []byte)
	}{
		{"database without its first pages", "etcd/member/snap/db", func(content []byte) { scramble(content[:8192]) }},
		{"database of noise", "etcd/member/snap/db", scramble},
		{"database with noise behind its first pages", "etcd/member/snap/db", func(content []byte) { scramble(content[8192:]) }},
		{"log with noise at its start", "etcd/member/wal/*.wal", func(content []byte) { scramble(content[100:300]) }},
		{"log of noise", "etcd/member/wal/*.wal", scramble},
	} {
		t.Run(test.name, func(t *testing.T) {
			dataDir := abandonedDir(t)
			server := start(t, dataDir)
			put(t, server, "key", strings.Repeat("value", 100))
			stop(t, server)
			damageFile(t, filepath.Join(dataDir, test.file), test.damage)

			_, err := Start(t.Context(), Options{DataDir: dataDir})
			expectError(t, err, dataDir, "damaged", "backup")
		})
	}
}

// abandonedDir returns a folder that is removed after the test. An etcd that
// gave up may have left a goroutine behind that still makes a file in it.
func abandonedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "damaged-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			return os.RemoveAll(dir) == nil, nil
		})
		if err != nil {
			t.Errorf("removing %s: %v", dir, err)
		}
	})
	return dir
}

func TestDirectoriesBelongToTheUserOnly(t *testing.T) {
	dataDir := filepath.Join(t.TempDir(), "data")
	// As a volume arrives.
	if err := os.Mkdir(dataDir, 0o777); err != nil {
		t.Fatal(err)
	}
	server := start(t, dataDir)
	defer stop(t, server)
	for _, dir := range []string{dataDir, filepath.Join(dataDir, "sockets")} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o700 {
			t.Errorf("%s has mode %o, want 700", dir, mode)
		}
	}
}

// Abstract sockets and TCP ports are open to every user of the machine.
func TestOnlyTheSocketInTheDirectoryIsListenedOn(t *testing.T) {
	dataDir := t.TempDir()
	before := listeningSockets(t)
	server := start(t, dataDir)
	defer stop(t, server)
	after := listeningSockets(t)
	for address := range before {
		delete(after, address)
	}
	if want := filepath.Join(dataDir, "sockets", "client"); len(after) != 1 || !after[want] {
		t.Errorf("the store listens on %v, want %s only", after, want)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	server := start(t, t.TempDir())
	defer stop(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Wait(ctx); err != nil {
		t.Errorf("waiting ended with %v", err)
	}
}

func TestNothingRunsAfterClose(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	stop(t, start(t, t.TempDir()))
	goleak.VerifyNone(t, ignore)
}

func start(t *testing.T, dataDir string) *Server {
	t.Helper()
	server, err := Start(t.Context(), Options{DataDir: dataDir})
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	return server
}

func stop(t *testing.T, server *Server) {
	t.Helper()
	if err := server.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

func put(t *testing.T, server *Server, key, value string) {
	t.Helper()
	request(t, server, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Put(ctx, key, value)
		return err
	})
}

func get(t *testing.T, server *Server, key string) (value string) {
	t.Helper()
	request(t, server, func(ctx context.Context, client *clientv3.Client) error {
		response, err := client.Get(ctx, key)
		if err == nil && len(response.Kvs) == 1 {
			value = string(response.Kvs[0].Value)
		}
		return err
	})
	return value
}

func request(t *testing.T, server *Server, do func(context.Context, *clientv3.Client) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint()}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	defer client.Close()
	if err := do(ctx, client); err != nil {
		t.Fatalf("querying the store: %v", err)
	}
}

func expectError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not hold %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has more than one line: %q", err)
	}
}

func damageFile(t *testing.T, pattern string, damage func(content []byte)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files are like %s (error: %v), want 1", len(files), pattern, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	damage(content)
	if err := os.WriteFile(files[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// scramble overwrites the beginning, most of which is in use, with noise: the
// same in every run.
func scramble(content []byte) {
	const longest = 1 << 20
	noise := rand.New(rand.NewPCG(1, 2))
	for i := range content[:min(len(content), longest)] {
		content[i] = byte(noise.Uint32())
	}
}

// listeningSockets returns what this process listens on: addresses in hex for
// TCP, paths for unix sockets, with @ in front of abstract ones.
func listeningSockets(t *testing.T) map[string]bool {
	t.Helper()
	own := map[string]bool{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		// A descriptor may be closed meanwhile.
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil {
			own[target] = true
		}
	}
	found := map[string]bool{}
	for _, table := range []struct {
		name                  string
		state, inode, address int
		listen                string
	}{
		{name: "tcp", state: 3, inode: 9, address: 1, listen: "0A"},
		{name: "tcp6", state: 3, inode: 9, address: 1, listen: "0A"},
		{name: "unix", state: 3, inode: 6, address: 7, listen: "00010000"},
	} {
		content, err := os.ReadFile("/proc/self/net/" + table.name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(content) {
			fields := strings.Fields(string(line))
			if len(fields) > max(table.inode, table.address) && fields[table.state] == table.listen && own[fmt.Sprintf("socket:[%s]", fields[table.inode])] {
				found[fields[table.address]] = true
			}
		}
	}
	return found
}
