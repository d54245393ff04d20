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
	"os/exec"
	"path/filepath"
)

// Etcd is an etcd beside the one of the control plane, which a test can stop
// and start again. It keeps its data. Its methods must not be called
// concurrently.
type Etcd struct {
	// Endpoint is where it serves its clients.
	Endpoint string

	binary, directory string
	// process is nil before the first start.
	process *Process
}

// NewEtcd returns an etcd that is not started yet. It lives in directory,
// which must exist.
func (e *Environment) NewEtcd(directory string) *Etcd {
	return &Etcd{Endpoint: etcdEndpoint(directory), binary: e.plane.tools.etcd, directory: directory}
}

// Start starts it. Its clients wait until it is ready.
func (e *Etcd) Start() error {
	var err error
	e.process, err = startProcess("etcd", filepath.Join(e.directory, "log"), exec.Command(e.binary, append(etcdArguments(e.directory), "--unsafe-no-fsync")...))
	return err
}

// Stop ends it with SIGTERM and waits for it.
func (e *Etcd) Stop() error {
	if e.process == nil {
		return nil
	}
	return e.process.Stop()
}

// etcdEndpoint is the socket that the etcd of a directory serves on.
func etcdEndpoint(directory string) string { return "unix://" + filepath.Join(directory, "client") }

// etcdArguments let etcd listen on sockets, so that it needs neither ports nor
// certificates.
func etcdArguments(directory string) []string {
	client, peer := etcdEndpoint(directory), "unix://"+filepath.Join(directory, "peer")
	return []string{
		"--name=etcd",
		"--data-dir=" + filepath.Join(directory, "data"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--enable-grpc-gateway=false",
	}
}
