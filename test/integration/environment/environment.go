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

// Package environment runs what integration tests need: a Kubernetes control
// plane of its own (etcd, kube-apiserver with aggregation and
// kube-controller-manager, no node), and elasti-apiserver as a process that
// the control plane aggregates, with the ServiceAccount, roles and APIService
// of artifacts/deploy.
//
// It knows nothing of what is tested. Begin with Environment.
package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/test/repository"
)

var groupVersion = v1alpha1.SchemeGroupVersion.String()

// Environment is a running control plane with elasti-apiserver behind it.
type Environment struct {
	// Directory holds logs, certificates and data.
	Directory string
	// Admin may do everything.
	Admin *rest.Config
	// Kubernetes and Elasti are clients of Admin.
	Kubernetes kubernetes.Interface
	Elasti     elasticlientset.Interface
	// Server is the server behind the APIService.
	Server *Server
	// Node is the simulated node of the pods.
	Node *Node
	// Resolvers are the pods of the resolvers. The first one is ready.
	Resolvers []Resolver

	// root is the root of the repository.
	root  string
	plane *controlPlane
	// durable is true when the control plane's etcd waits for the disk.
	durable bool
	// clusterStorage is true when the server stores ElastiServices in the host cluster.
	clusterStorage bool
}

// Start starts an environment and returns when the API of ElastiServices is available. It
// compiles the server if needed. Stop must be called in the end.
func Start(ctx context.Context) (*Environment, error) {
	return startWith(ctx, func(e *Environment, ctx context.Context, binaries tools, address string) error {
		return e.start(ctx, binaries, address, "-race")
	})
}

// StartAsDeployed is as Start, with what users run: the server is built without the race
// detector and stores ElastiServices in the host cluster, and the control plane's etcd
// waits for the disk. End it with Stop.
func StartAsDeployed(ctx context.Context) (*Environment, error) {
	return startWith(ctx, func(e *Environment, ctx context.Context, binaries tools, address string) error {
		e.durable, e.clusterStorage = true, true
		return e.start(ctx, binaries, address)
	})
}

// StartForMeasuring starts an environment for benchmarks: the server is built
// as for users, without the race detector, and there are neither controllers
// nor pods. End it with Stop.
func StartForMeasuring(ctx context.Context) (*Environment, error) {
	return startWith(ctx, (*Environment).startForMeasuring)
}

// StartForComparing is as StartForMeasuring, with a control plane whose etcd
// acknowledges a write only when it is on the disk, as the embedded store of the
// server does. End it with Stop.
func StartForComparing(ctx context.Context) (*Environment, error) {
	return startWith(ctx, func(e *Environment, ctx context.Context, binaries tools, address string) error {
		e.durable = true
		return e.startForMeasuring(ctx, binaries, address)
	})
}

// StartHost starts a control plane alone, with flags for its kube-apiserver:
// without controllers, without manifests and without elasti-apiserver. End it with
// Stop.
func StartHost(ctx context.Context, apiServerFlags ...string) (*Environment, error) {
	return startWith(ctx, func(e *Environment, ctx context.Context, binaries tools, address string) error {
		var err error
		if e.plane, err = startControlPlane(ctx, e.Directory, binaries, address, false, apiServerFlags...); err != nil {
			return err
		}
		e.Admin = e.plane.admin
		if e.Kubernetes, err = kubernetes.NewForConfig(e.Admin); err != nil {
			return fmt.Errorf("making the client of the cluster: %w", err)
		}
		return nil
	})
}

func startWith(ctx context.Context, start func(e *Environment, ctx context.Context, binaries tools, address string) error) (*Environment, error) {
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	binaries, err := findTools()
	if err != nil {
		return nil, err
	}
	address, err := hostAddress()
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "elasti-integration-")
	if err != nil {
		return nil, fmt.Errorf("creating the folder of the environment: %w", err)
	}
	environment := &Environment{Directory: directory, root: root}
	if environment.clusterStorage, err = usesClusterStorage(); err != nil {
		return nil, err
	}
	if err := start(environment, ctx, binaries, address); err != nil {
		return nil, errors.Join(err, environment.Stop(ctx), fmt.Errorf("logs are in %s", directory))
	}
	return environment, nil
}

func (e *Environment) start(ctx context.Context, binaries tools, address string, buildFlags ...string) error {
	if err := e.startAlone(ctx, binaries, address, buildFlags...); err != nil {
		return err
	}
	if err := e.plane.startControllerManager(); err != nil {
		return err
	}
	var err error
	if e.Node, err = newNode(ctx, e.Kubernetes); err != nil {
		return err
	}
	if e.Resolvers, err = runResolvers(ctx, e.Kubernetes, e.Node); err != nil {
		return err
	}
	return nil
}

func (e *Environment) startForMeasuring(ctx context.Context, binaries tools, address string) error {
	return e.startAlone(ctx, binaries, address)
}

// startAlone starts a control plane without controllers, and the server.
func (e *Environment) startAlone(ctx context.Context, binaries tools, address string, buildFlags ...string) error {
	// Tests run the binary as other users, which need access to it.
	if err := os.Chmod(e.Directory, 0o755); err != nil {
		return fmt.Errorf("letting all users into %s: %w", e.Directory, err)
	}
	binary := filepath.Join(e.Directory, ServerName)
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return buildServer(groupCtx, binary, buildFlags...) })
	group.Go(func() error {
		var err error
		if e.plane, err = startControlPlane(groupCtx, e.Directory, binaries, address, e.durable); err != nil {
			return err
		}
		e.Admin = e.plane.admin
		return e.applyManifests(groupCtx, binaries.kubectl)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return e.startServer(ctx, address, binary)
}

// startServer starts the server behind a control plane that has the manifests.
func (e *Environment) startServer(ctx context.Context, address, binary string) error {
	var err error
	if e.Kubernetes, err = kubernetes.NewForConfig(e.Admin); err != nil {
		return fmt.Errorf("making the client of the cluster: %w", err)
	}
	if e.Elasti, err = elasticlientset.NewForConfig(e.Admin); err != nil {
		return fmt.Errorf("making the client of ElastiServices: %w", err)
	}
	if e.Server, err = newServer(ctx, e.Directory, e.Admin, address, binary); err != nil {
		return err
	}
	e.Server.Flags = e.storageFlags(e.Server.DataDir)
	return e.Server.Start(ctx)
}

// StartBeside starts a second environment, with flags for its kube-apiserver.
// It runs the same program, and has neither controllers nor pods. It lives in
// a folder name of this one. End it with Stop.
func (e *Environment) StartBeside(ctx context.Context, name string, apiServerFlags ...string) (*Environment, error) {
	return e.startBeside(ctx, name, e.clusterStorage, apiServerFlags)
}

// StartBesideOnClusterStorage is as StartBeside, with a server that stores ElastiServices in
// its host cluster.
func (e *Environment) StartBesideOnClusterStorage(ctx context.Context, name string, apiServerFlags ...string) (*Environment, error) {
	return e.startBeside(ctx, name, true, apiServerFlags)
}

func (e *Environment) startBeside(ctx context.Context, name string, clusterStorage bool, apiServerFlags []string) (*Environment, error) {
	beside := &Environment{Directory: filepath.Join(e.Directory, name), clusterStorage: clusterStorage}
	if err := os.Mkdir(beside.Directory, 0o755); err != nil {
		return nil, fmt.Errorf("creating the folder of the second environment: %w", err)
	}
	if err := beside.startSmall(ctx, e, apiServerFlags); err != nil {
		return nil, errors.Join(err, beside.Stop(ctx))
	}
	return beside, nil
}

func (e *Environment) startSmall(ctx context.Context, first *Environment, apiServerFlags []string) error {
	var err error
	if e.plane, err = startControlPlane(ctx, e.Directory, first.plane.tools, first.plane.hostAddress, false, apiServerFlags...); err != nil {
		return err
	}
	e.Admin = e.plane.admin
	if err := e.applyManifests(ctx, first.plane.tools.kubectl); err != nil {
		return err
	}
	return e.startServer(ctx, first.Server.Address, first.Server.Binary)
}

// RestartAPIServer kills kube-apiserver and returns when it is ready again. Its
// address stays.
func (e *Environment) RestartAPIServer(ctx context.Context) error {
	return e.plane.restartAPIServer(ctx, (*Process).Kill)
}

// RestartAPIServerGracefully is as RestartAPIServer, but ends kube-apiserver with SIGTERM.
// One that has not ended within the grace period is killed, as by a kubelet.
func (e *Environment) RestartAPIServerGracefully(ctx context.Context, grace time.Duration) error {
	return e.plane.restartAPIServer(ctx, func(process *Process) { process.terminate(grace) })
}

// Stop ends everything that Start has started. It returns an error for a process that did
// not end by itself, and for a defect that a server reported.
func (e *Environment) Stop(ctx context.Context) error {
	var errs []error
	if e.Server != nil {
		errs = append(errs, e.Server.Stop(ctx))
	}
	if e.plane != nil {
		errs = append(errs, e.plane.stop())
	}
	return errors.Join(errs...)
}

// Remove deletes the folder of the environment after it has stopped.
func (e *Environment) Remove() error {
	if err := os.RemoveAll(e.Directory); err != nil {
		return fmt.Errorf("removing the folder of the environment: %w", err)
	}
	return nil
}

// AsServiceAccount returns the client configuration of an existing ServiceAccount, with a
// token as the only credential.
func (e *Environment) AsServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	return asServiceAccount(ctx, e.Admin, namespace, name)
}

// FreePort returns an unused TCP port of the server's address.
func (e *Environment) FreePort(ctx context.Context) (int, error) {
	return freePort(ctx, e.Server.Address)
}
