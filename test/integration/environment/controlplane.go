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
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	serviceAddresses     = "10.96.0.0/16"
	serviceAddressesIPv6 = "fd00:10:96::/112"
	firstServiceAddress  = "10.96.0.1"

	// startTimeout is how long a part of the environment has to become ready.
	startTimeout = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// controllers are the controllers of kube-controller-manager that the tests need. There is
// no node: pods do not change until a test acts as the kubelet.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"deployment-controller",
	"endpointslice-controller",
	"garbage-collector-controller",
	"horizontal-pod-autoscaler-controller",
	"namespace-controller",
	"replicaset-controller",
	"resourcequota-controller",
	"serviceaccount-controller",
	"statefulset-controller",
}

// controlPlane is a Kubernetes control plane with aggregation, without nodes.
type controlPlane struct {
	directory   string
	tools       tools
	hostAddress string
	credentials *credentials
	admin       *rest.Config
	processes   []*Process
	// port is the one of kube-apiserver, which it keeps when it is started again.
	port int
	// etcdEndpoint is where etcd serves its clients.
	etcdEndpoint string
	// durable is true when etcd waits for the disk. Most tests need not.
	durable bool
	// apiServerFlags are flags of kube-apiserver beside those that every
	// control plane has.
	apiServerFlags []string
}

// startControlPlane returns when the API server is ready. Controllers run after
// startControllerManager.
func startControlPlane(ctx context.Context, directory string, binaries tools, hostAddress string, durable bool, apiServerFlags ...string) (*controlPlane, error) {
	plane := &controlPlane{directory: directory, tools: binaries, hostAddress: hostAddress, durable: durable, apiServerFlags: apiServerFlags}
	if err := plane.start(ctx); err != nil {
		return nil, errors.Join(err, plane.stop())
	}
	return plane, nil
}

func (c *controlPlane) start(ctx context.Context) error {
	var err error
	if c.credentials, err = newCredentials(filepath.Join(c.directory, "pki")); err != nil {
		return err
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// etcdDirectory is where etcd has its data and its sockets.
func (c *controlPlane) etcdDirectory() string { return filepath.Join(c.directory, "etcd") }

// startEtcd does not wait until etcd is ready: kube-apiserver does.
func (c *controlPlane) startEtcd() error {
	directory := c.etcdDirectory()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("creating the folder of etcd: %w", err)
	}
	c.etcdEndpoint = etcdEndpoint(directory)
	arguments := etcdArguments(directory)
	if !c.durable {
		arguments = append(arguments, "--unsafe-no-fsync")
	}
	_, err := c.run("etcd", c.tools.etcd, arguments...)
	return err
}

func (c *controlPlane) startAPIServer(ctx context.Context) error {
	const address = "127.0.0.1"
	if c.port == 0 {
		var err error
		if c.port, err = freePort(ctx, address); err != nil {
			return err
		}
	}
	process, err := c.run("kube-apiserver", c.tools.apiServer, append([]string{
		"--etcd-servers=" + c.etcdEndpoint,
		"--bind-address=" + address,
		"--advertise-address=" + c.hostAddress,
		"--secure-port=" + strconv.Itoa(c.port),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceAddresses + "," + serviceAddressesIPv6,
		"--client-ca-file=" + c.credentials.path("ca.crt"),
		"--tls-cert-file=" + c.credentials.path("kube-apiserver.crt"),
		"--tls-private-key-file=" + c.credentials.path("kube-apiserver.key"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.credentials.path("service-account.key"),
		"--service-account-signing-key-file=" + c.credentials.path("service-account.key"),
		"--requestheader-client-ca-file=" + c.credentials.path("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + c.credentials.path("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.credentials.path("front-proxy-client.key"),
		"--enable-aggregator-routing=true",
		"--v=1",
	}, c.apiServerFlags...)...)
	if err != nil {
		return err
	}
	c.admin = &rest.Config{
		Host: fmt.Sprintf("https://%s:%d", address, c.port),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.credentials.clusterAuthority,
			CertData: c.credentials.adminCertificate,
			KeyData:  c.credentials.adminKey,
		},
		// Tests that are about warnings set a handler of their own.
		WarningHandler: rest.NoWarnings{},
		// Tests must not wait for a client-side limit.
		QPS: -1,
	}
	client, err := kubernetes.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("making the client for kube-apiserver: %w", err)
	}
	return waitUntil(ctx, process, "kube-apiserver is ready", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// restartAPIServer ends kube-apiserver, and starts it again.
func (c *controlPlane) restartAPIServer(ctx context.Context, end func(*Process)) error {
	c.processes = slices.DeleteFunc(c.processes, func(process *Process) bool {
		if process.name != "kube-apiserver" {
			return false
		}
		end(process)
		return true
	})
	return c.startAPIServer(ctx)
}

// startControllerManager starts the controllers. They discover the APIs that are served at
// their start at once, and later ones within half a minute.
func (c *controlPlane) startControllerManager() error {
	kubeconfig := filepath.Join(c.directory, "admin.kubeconfig")
	if err := writeKubeconfig(kubeconfig, c.admin, ""); err != nil {
		return err
	}
	_, err := c.run("kube-controller-manager", c.tools.controllerManager,
		"--kubeconfig="+kubeconfig,
		"--controllers="+strings.Join(controllers, ","),
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file="+c.credentials.path("service-account.key"),
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--concurrent-namespace-syncs=50",
		"--horizontal-pod-autoscaler-sync-period=1s",
		"--v=1",
	)
	return err
}

func (c *controlPlane) run(name, binary string, arguments ...string) (*Process, error) {
	process, err := startProcess(name, filepath.Join(c.directory, name+".log"), exec.Command(binary, arguments...))
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, process)
	return process, nil
}

// has reports whether the control plane has a process of that name.
func (c *controlPlane) has(name string) bool {
	return slices.ContainsFunc(c.processes, func(process *Process) bool { return process.name == name })
}

// stop ends the processes, the last one first.
func (c *controlPlane) stop() error {
	var errs []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		// kube-apiserver waits for its watchers before it ends. No test needs them.
		if c.processes[i].name == "kube-apiserver" {
			c.processes[i].Kill()
			continue
		}
		errs = append(errs, c.processes[i].Stop())
	}
	return errors.Join(errs...)
}

// waitUntil polls until check returns no error. It fails early when process ends.
func waitUntil(ctx context.Context, process *Process, what string, check func(ctx context.Context) error) error {
	last := errors.New("it was not checked yet")
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-process.Exited():
			return false, fmt.Errorf("%s ended with exit code %d", process.name, process.ExitCode())
		default:
		}
		// One check must not use up the whole timeout.
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w (last result: %w)\n%s", what, err, last, process.Tail())
	}
	return nil
}
