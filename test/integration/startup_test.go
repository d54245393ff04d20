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

package integration

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// unprivileged is a user without any permission.
var unprivileged = &syscall.Credential{Uid: 65534, Gid: 65534}

// attempt is a start of the server that is going to fail.
type attempt struct {
	kubeconfig string
	dataDir    string
	port       int
	extra      []string
	user       *syscall.Credential
}

// newAttempt returns one that would succeed.
func newAttempt(t *testing.T) *attempt {
	t.Helper()
	port, err := shared.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &attempt{kubeconfig: shared.Server.Kubeconfig, dataDir: filepath.Join(t.TempDir(), "data"), port: port}
}

func (a *attempt) start(t *testing.T) *environment.Process {
	t.Helper()
	arguments := append([]string{
		"--kubeconfig=" + a.kubeconfig,
		"--bind-address=" + shared.Server.Address,
		"--secure-port=" + strconv.Itoa(a.port),
		"--storage=embedded",
		"--data-dir=" + a.dataDir,
	}, a.extra...)
	process, err := shared.Server.StartAnother(filepath.Join(t.TempDir(), "log"), a.user, arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return process
}

// failureTimeout is longer than a server waits for conditions that may still become
// true, such as the end of the previous process.
const failureTimeout = 2 * time.Minute

// expectFailure waits until the process has ended, and expects that the last line of its
// log is the only error and has all of these words.
func (a *attempt) expectFailure(t *testing.T, words ...string) {
	t.Helper()
	process := a.start(t)
	select {
	case <-process.Exited():
	case <-time.After(failureTimeout):
		t.Fatalf("the server runs still\n%s", process.Tail())
	}
	if code := process.ExitCode(); code <= 0 {
		t.Errorf("the exit code is %d, want one above 0", code)
	}
	output := strings.TrimSpace(process.Output())
	var complaints []string
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "E") || strings.HasPrefix(line, "F") {
			complaints = append(complaints, line)
		}
	}
	last := output[strings.LastIndex(output, "\n")+1:]
	if len(complaints) != 1 || complaints[0] != last {
		t.Errorf("want one line with the reason, the last one, but the output is:\n%s", output)
	}
	if strings.Contains(output, "goroutine ") {
		t.Errorf("the output has a stack trace:\n%s", output)
	}
	for _, word := range words {
		if !strings.Contains(last, word) {
			t.Errorf("the last line does not say %q: %s", word, last)
		}
	}
}

func TestWrongKubeconfigEndsTheServer(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		failing := newAttempt(t)
		failing.kubeconfig = filepath.Join(t.TempDir(), "missing")
		failing.expectFailure(t, "--kubeconfig", failing.kubeconfig)
	})
	t.Run("malformed", func(t *testing.T) {
		failing := newAttempt(t)
		failing.kubeconfig = filepath.Join(t.TempDir(), "malformed")
		if err := os.WriteFile(failing.kubeconfig, []byte("not: [a, kubeconfig"), 0o600); err != nil {
			t.Fatal(err)
		}
		failing.expectFailure(t, "--kubeconfig", failing.kubeconfig)
	})
	t.Run("of a cluster that does not respond", func(t *testing.T) {
		failing := newAttempt(t)
		failing.kubeconfig = changedKubeconfig(t, shared.Admin.Host, "https://127.0.0.1:1")
		failing.expectFailure(t, "connection refused", "127.0.0.1:1")
	})
	t.Run("with a token that is not valid", func(t *testing.T) {
		failing := newAttempt(t)
		failing.kubeconfig = changedKubeconfig(t, "token: ", "token: x")
		failing.expectFailure(t, "Unauthorized")
	})
}

// changedKubeconfig returns a copy of the server's kubeconfig with a change.
func changedKubeconfig(t *testing.T, before, after string) string {
	t.Helper()
	content, err := os.ReadFile(shared.Server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(content, []byte(before), []byte(after), 1)
	if bytes.Equal(changed, content) {
		t.Fatalf("the kubeconfig does not hold %q", before)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTakenPortEndsTheServer(t *testing.T) {
	failing := newAttempt(t)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", net.JoinHostPort(shared.Server.Address, strconv.Itoa(failing.port)))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	failing.expectFailure(t, "address already in use", strconv.Itoa(failing.port))
}

func TestUnwritableDataDirectoryEndsTheServer(t *testing.T) {
	t.Run("below a file", func(t *testing.T) {
		failing := newAttempt(t)
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		failing.dataDir = filepath.Join(file, "data")
		failing.expectFailure(t, "--data-dir", failing.dataDir, "not a directory")
	})
	t.Run("in a directory of another user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Fatal("this test starts the server as another user and must run as root")
		}
		failing := newAttempt(t)
		failing.user = unprivileged
		failing.kubeconfig = kubeconfigForAll(t)
		parent := worldReadableDir(t, 0o755)
		failing.dataDir = filepath.Join(parent, "data")
		failing.expectFailure(t, "--data-dir", failing.dataDir, "permission denied")
	})
	t.Run("of another user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Fatal("this test starts the server as another user and must run as root")
		}
		failing := newAttempt(t)
		failing.user = unprivileged
		failing.kubeconfig = kubeconfigForAll(t)
		failing.dataDir = worldReadableDir(t, 0o755)
		failing.expectFailure(t, "data directory", failing.dataDir, "operation not permitted")
	})
}

// worldReadableDir is a new directory that other users can get to.
func worldReadableDir(t *testing.T, mode os.FileMode) string {
	t.Helper()
	directory, err := os.MkdirTemp(shared.Directory, "open-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(directory, mode); err != nil {
		t.Fatal(err)
	}
	return directory
}

// kubeconfigForAll is a copy of the server's kubeconfig that all users can read.
func kubeconfigForAll(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(shared.Server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(worldReadableDir(t, 0o755), "kubeconfig")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDataDirectoryInUseEndsTheServer(t *testing.T) {
	namespace := newNamespace(t)
	failing := newAttempt(t)
	failing.dataDir = shared.Server.DataDir
	failing.expectFailure(t, "--data-dir", failing.dataDir, "in use")
	// The server that uses the data directory continues.
	createElastiService(t, namespace, newElastiService("app"))
}

func TestDamagedDataDirectoryEndsTheServer(t *testing.T) {
	for _, test := range []struct {
		name, file string
		from, to   int64
	}{
		{"database", "etcd/member/snap/db", 0, 64 << 10},
		{"database behind its first pages", "etcd/member/snap/db", 8 << 10, 64 << 10},
		{"log", "etcd/member/wal/*.wal", 64, 64 << 10},
	} {
		t.Run(test.name, func(t *testing.T) {
			failing := newAttempt(t)
			// A server that is killed leaves a data directory.
			first := failing.start(t)
			eventuallyReady(t, failing, first)
			first.Kill()
			files, err := filepath.Glob(filepath.Join(failing.dataDir, test.file))
			if err != nil || len(files) != 1 {
				t.Fatalf("%d files are like %s (error: %v), want 1", len(files), test.file, err)
			}
			overwrite(t, files[0], test.from, test.to)
			failing.expectFailure(t, "damaged", failing.dataDir, "backup")
		})
	}
}

func overwrite(t *testing.T, path string, from, to int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(bytes.Repeat([]byte("garbage "), int(to-from)/8), from); err != nil {
		t.Fatal(err)
	}
}

func TestWrongFlagsEndTheServer(t *testing.T) {
	for _, test := range []struct {
		name  string
		extra []string
		words []string
	}{
		{"two storages", []string{"--etcd-servers=http://127.0.0.1:1"}, []string{"--etcd-servers", "--storage=etcd"}},
		{"unknown storage", []string{"--storage=paper"}, []string{"--storage", "paper", "embedded"}},
		{"half a certificate", []string{"--serving-certificate=files"}, []string{"--tls-cert-file", "--tls-private-key-file"}},
		{"unknown flag", []string{"--unknown"}, []string{"--unknown"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			failing := newAttempt(t)
			failing.extra = test.extra
			failing.expectFailure(t, test.words...)
		})
	}
}

// eventuallyReady waits until a server that was started serves.
func eventuallyReady(t *testing.T, started *attempt, process *environment.Process) {
	t.Helper()
	address := net.JoinHostPort(shared.Server.Address, strconv.Itoa(started.port))
	var dialer net.Dialer
	eventually(t, "the server listens", func(ctx context.Context) string {
		select {
		case <-process.Exited():
			t.Fatalf("it has ended\n%s", process.Tail())
		default:
		}
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err.Error()
		}
		return errorText(connection.Close())
	})
}

func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
