//go:build more

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

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// TestDatabasesWakeForTheirOwnClients puts a real PostgreSQL and a real Redis to sleep and
// connects with their own clients: at zero, and awake.
func TestDatabasesWakeForTheirOwnClients(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	image, err := s.DatabasesImage(s.ctx)
	s.check(err)
	databases := []*database{
		{
			name: "postgresql", port: 5432,
			// The socket needs no authentication, because the network is private.
			server: `initdb -D /tmp/data -A trust -U postgres --no-sync --locale=C >/dev/null &&
				echo 'host all all all trust' >>/tmp/data/pg_hba.conf &&
				exec postgres -D /tmp/data -c listen_addresses='*' -c unix_socket_directories=/tmp -c fsync=off`,
			client: []string{"/usr/postgresql/psql", "--no-psqlrc", "--username=postgres", "--dbname=postgres", "--no-align", "--tuples-only", "--quiet"},
			input:  "CREATE TEMPORARY TABLE t AS SELECT generate_series(1, 200000) AS n; SELECT count(*), sum(n) FROM t; COPY (SELECT repeat('x', 1000) FROM t LIMIT 3000) TO STDOUT;",
			// A resolver cannot run this probe, and waits until the kubelet has run it.
			probe: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/usr/postgresql/pg_isready", "--host=127.0.0.1"}}},
			expect: func(output string) bool {
				return strings.HasPrefix(output, "200000|20000100000\n") && strings.Count(output, strings.Repeat("x", 1000)+"\n") == 3000
			},
		},
		{
			name: "redis", port: 6379,
			server: "exec redis-server --bind 0.0.0.0 --protected-mode no --save '' --dir /tmp",
			client: []string{"/usr/bin/redis-cli"},
			probe:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(6379)}},
			input:  "SET greeting hello\nAPPEND greeting ,world\nGET greeting\n",
			expect: func(output string) bool { return output == "OK\n11\nhello,world\n" },
		},
	}
	for _, db := range databases {
		db.files = filepath.Join(s.Repository, "_output", "images", "databases")
		db.app = s.NewApplication(s.namespace, cluster.ApplicationOptions{
			Name:         db.name,
			ServicePorts: []corev1.ServicePort{{Name: db.name, Port: db.port, TargetPort: intstr.FromInt32(db.port)}},
			Container: func(container *corev1.Container) {
				container.Image = image
				container.Command, container.Args = []string{"/bin/sh", "-c", db.server}, nil
				container.Ports = nil
				container.ReadinessProbe = &corev1.Probe{ProbeHandler: db.probe, PeriodSeconds: 1, TimeoutSeconds: 10}
			},
		})
		s.check(db.app.Create(s.ctx))
	}
	for _, db := range databases {
		s.check(db.app.AwaitAsleep(s.ctx))
		s.check(db.app.AwaitResolverSlice(s.ctx, true))
		s.check(db.app.AwaitReachable(s.ctx))
	}
	for _, phase := range []string{"AtZero", "Awake"} {
		failures := make([]error, len(databases))
		var ended sync.WaitGroup
		for i, db := range databases {
			ended.Go(func() { failures[i] = db.talk(s.ctx) })
		}
		ended.Wait()
		for i, db := range databases {
			if failures[i] != nil {
				t.Errorf("%s/%s: %v", phase, db.name, failures[i])
			}
		}
	}
}

// database is a server and its own client.
type database struct {
	name   string
	port   int32
	server string
	probe  corev1.ProbeHandler
	client []string
	// input is the input of the client, and expect checks its output.
	input  string
	expect func(output string) bool

	files string
	app   *cluster.Application
}

// talk runs the client from the files of the image.
func (d *database) talk(ctx context.Context) error {
	arguments := slices.Concat(d.client[1:], []string{"-h", d.app.Address, "-p", strconv.Itoa(int(d.port))})
	command := exec.CommandContext(ctx, d.client[0], arguments...)
	// The path is one inside of the image.
	command.Path, command.Err = d.client[0], nil
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: d.files}
	command.Env = []string{"PATH=/usr/bin"}
	command.Stdin = strings.NewReader(d.input)
	output, err := command.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			return fmt.Errorf("%s: %w: %s", d.client[0], err, failed.Stderr)
		}
		return err
	}
	if !d.expect(string(output)) {
		return fmt.Errorf("%s printed %d bytes, %.100q", d.client[0], len(output), output)
	}
	return nil
}
