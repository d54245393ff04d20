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

package programs

import (
	"net"
	"path/filepath"
)

// MetricsServer is a metrics-server. For use by one goroutine.
type MetricsServer struct {
	Program
	// Address is where it serves metrics.k8s.io, as host and port.
	Address string
}

// NewMetricsServer prepares a metrics-server for the cluster of a kubeconfig,
// that listens on an address of the host and queries kubelets as often as it can,
// each 10 s. The directory is for its certificate.
func NewMetricsServer(path, kubeconfig, host, directory string) (*MetricsServer, error) {
	address, err := FreeAddress(host)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	return &MetricsServer{
		Program: Program{Path: path, Directory: directory, Arguments: []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=" + host, "--secure-port=" + port, "--cert-dir=" + filepath.Join(directory, "certificates"),
			"--kubelet-preferred-address-types=InternalIP", "--kubelet-request-timeout=5s", "--metric-resolution=10s",
		}},
		Address: address,
	}, nil
}
