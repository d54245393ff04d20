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
	"os/exec"
	"path/filepath"
	"strings"
)

// etcdName is the name of an etcd of one member.
const etcdName = "etcd"

// Etcd is an etcd beside the one of the control plane, or what speaks its protocol,
// which a test can stop and start again. It keeps its data. Its methods must not be
// called concurrently.
type Etcd struct {
	// Endpoint is where it serves its clients.
	Endpoint string

	// command is the program with its arguments, and log the file that it writes to.
	command []string
	log     string
	// process is nil before the first start.
	process *Process
}

// NewEtcd returns an etcd that is not started yet. It lives in directory,
// which must exist.
func (e *Environment) NewEtcd(directory string) *Etcd {
	return &Etcd{
		Endpoint: etcdEndpoint(directory),
		command:  append([]string{e.plane.tools.etcd, "--unsafe-no-fsync"}, etcdArguments(directory)...),
		log:      filepath.Join(directory, "log"),
	}
}

// NewKine returns a kine, which stores in SQLite what is written with the protocol of etcd.
// It is not started yet. It lives in directory, which must exist.
func (e *Environment) NewKine(directory string) (*Etcd, error) {
	program, err := e.plane.tools.find("kine", "make test-durability")
	if err != nil {
		return nil, err
	}
	endpoint := etcdEndpoint(directory)
	return &Etcd{
		Endpoint: endpoint,
		command: []string{
			program,
			"--listen-address=" + endpoint,
			// The parameters are the default ones.
			"--endpoint=sqlite://" + filepath.Join(directory, "state.db") + "?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate",
			"--metrics-bind-address=0",
		},
		log: filepath.Join(directory, "log"),
	}, nil
}

// NewEtcdMembers returns the members of one etcd, which are not started yet. They confirm a
// write when a majority of them has it on the disk. They live in directory, which must
// exist, and serve on the loopback interface.
func (e *Environment) NewEtcdMembers(ctx context.Context, directory string, count int) ([]*Etcd, error) {
	const address = "127.0.0.1"
	peers, members := make([]string, count), make([]*Etcd, count)
	for i := range members {
		clientPort, err := freePort(ctx, address)
		if err != nil {
			return nil, err
		}
		peerPort, err := freePort(ctx, address)
		if err != nil {
			return nil, err
		}
		peers[i] = fmt.Sprintf("member-%d=http://%s:%d", i, address, peerPort)
		members[i] = &Etcd{Endpoint: fmt.Sprintf("http://%s:%d", address, clientPort)}
	}
	for i, member := range members {
		name, peer, _ := strings.Cut(peers[i], "=")
		own := filepath.Join(directory, name)
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, fmt.Errorf("creating the folder of a member of etcd: %w", err)
		}
		member.log = filepath.Join(own, "log")
		member.command = []string{
			e.plane.tools.etcd,
			"--name=" + name,
			"--data-dir=" + filepath.Join(own, "data"),
			"--listen-client-urls=" + member.Endpoint,
			"--advertise-client-urls=" + member.Endpoint,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + strings.Join(peers, ","),
			"--enable-grpc-gateway=false",
		}
	}
	return members, nil
}

// Start starts it. Its clients wait until it is ready.
func (e *Etcd) Start() error {
	var err error
	e.process, err = startProcess(filepath.Base(e.command[0]), e.log, exec.Command(e.command[0], e.command[1:]...))
	return err
}

// Kill ends it as kill -9 does.
func (e *Etcd) Kill() { e.process.Kill() }

// Process is the process that was started last.
func (e *Etcd) Process() *Process { return e.process }

// Stop ends it with SIGTERM and waits for it.
func (e *Etcd) Stop() error {
	if e.process == nil {
		return nil
	}
	return e.process.Stop()
}

// etcdEndpoint is the socket that the etcd of a directory serves on.
func etcdEndpoint(directory string) string { return "unix://" + filepath.Join(directory, "client") }

// etcdPeer is the socket for the peers of that etcd, of which there are none.
func etcdPeer(directory string) string { return "unix://" + filepath.Join(directory, "peer") }

// etcdArguments let etcd listen on sockets, so that it needs neither ports nor
// certificates.
func etcdArguments(directory string) []string {
	client, peer := etcdEndpoint(directory), etcdPeer(directory)
	return []string{
		"--name=" + etcdName,
		"--data-dir=" + filepath.Join(directory, "data"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + etcdName + "=" + peer,
		"--enable-grpc-gateway=false",
	}
}
