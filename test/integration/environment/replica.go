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
	"errors"
	"path/filepath"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NewReplica returns a second server that is not started yet, with a port and a log of its
// own, and with flags instead of those of Server. Once it is started, it is also an
// endpoint of the APIService.
func (e *Environment) NewReplica(ctx context.Context, name string, flags ...string) (*Server, error) {
	replica := *e.Server
	replica.process = nil
	replica.log = filepath.Join(e.Directory, name+".log")
	replica.slice = name
	replica.Flags = flags
	var err error
	replica.Port, err = e.FreePort(ctx)
	return &replica, err
}

// RemoveReplica stops a replica and takes it out of the environment.
func (e *Environment) RemoveReplica(ctx context.Context, replica *Server) error {
	stopErr := replica.Stop(ctx)
	err := e.Kubernetes.DiscoveryV1().EndpointSlices(SystemNamespace).Delete(ctx, replica.slice, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(stopErr, err)
}

// EtcdEndpoint is where the etcd of the control plane serves its clients.
func (e *Environment) EtcdEndpoint() string { return e.plane.etcdEndpoint }
