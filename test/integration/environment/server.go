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
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
)

// Server is the elasti-apiserver behind the APIService of an environment. It keeps its port
// and its data directory when it is started again. Its methods must not be called
// concurrently.
type Server struct {
	// Binary is the program.
	Binary string
	// Kubeconfig is its kubeconfig for the host cluster, with its own ServiceAccount.
	Kubeconfig string
	// DataDir is the data directory of its embedded store.
	DataDir string
	// Flags are its flags other than those for its address and the host cluster.
	Flags []string
	// Address and Port are those on which it serves.
	Address string
	Port    int

	log string
	// slice is its EndpointSlice.
	slice         string
	admin         kubernetes.Interface
	registrations apiregistration.Interface
	// process is nil before the first start.
	process *Process
}

// newServer prepares everything that the server needs before it is started.
func newServer(ctx context.Context, directory string, admin *rest.Config, address, binary string) (*Server, error) {
	server := &Server{
		Binary:     binary,
		Kubeconfig: filepath.Join(directory, ServerName+".kubeconfig"),
		DataDir:    filepath.Join(directory, "elasti-data"),
		Address:    address,
		log:        filepath.Join(directory, ServerName+".log"),
		slice:      ServerName,
	}
	var err error
	if server.admin, err = kubernetes.NewForConfig(admin); err != nil {
		return nil, fmt.Errorf("making the client of the server's deployment: %w", err)
	}
	if server.registrations, err = apiregistration.NewForConfig(admin); err != nil {
		return nil, fmt.Errorf("making the client for APIServices: %w", err)
	}
	if server.Port, err = freePort(ctx, address); err != nil {
		return nil, err
	}
	identity, err := asServiceAccount(ctx, admin, SystemNamespace, ServerName)
	if err != nil {
		return nil, err
	}
	return server, writeKubeconfig(server.Kubeconfig, identity, "")
}

// Arguments are the flags that the server is started with.
func (s *Server) Arguments() []string {
	return append([]string{
		"--kubeconfig=" + s.Kubeconfig,
		"--bind-address=" + s.Address,
		"--secure-port=" + strconv.Itoa(s.Port),
	}, s.Flags...)
}

// StartAnother starts one more process of the server's program with its own
// arguments and log. A nil user means the one of this process.
func (s *Server) StartAnother(log string, user *syscall.Credential, arguments ...string) (*Process, error) {
	command := exec.Command(s.Binary, arguments...)
	// Races are found in the output.
	// The manifest sets GOGC.
	command.Env = append([]string{"GOGC=50"}, append(os.Environ(), "POD_NAMESPACE="+SystemNamespace, "GORACE=exitcode=0")...)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	return startProcess(ServerName, log, command)
}

// Start starts the server and returns when the aggregator forwards requests to it.
func (s *Server) Start(ctx context.Context) error {
	var err error
	if s.process, err = s.StartAnother(s.log, nil, s.Arguments()...); err != nil {
		return err
	}
	if err := waitUntil(ctx, s.process, ServerName+" is ready", s.isReady); err != nil {
		return err
	}
	if err := publishEndpoint(ctx, s.admin, s.slice, s.Address, s.Port, true); err != nil {
		return err
	}
	return waitUntil(ctx, s.process, "the APIService is available", s.isAvailable)
}

func (s *Server) isReady(ctx context.Context) error { return s.Health(ctx, "/readyz") }

// Health gets a path such as /readyz from the server directly, as a kubelet does:
// without credentials and without verifying its certificate.
func (s *Server) Health(ctx context.Context, path string) error {
	config := &rest.Config{
		Host:            "https://" + net.JoinHostPort(s.Address, strconv.Itoa(s.Port)),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client for its health: %w", err)
	}
	return client.Discovery().RESTClient().Get().AbsPath(path).Do(ctx).Error()
}

// isAvailable checks in kube-apiserver the condition of the APIService, and whether the
// handler has followed it.
func (s *Server) isAvailable(ctx context.Context) error {
	apiService, err := s.registrations.ApiregistrationV1().APIServices().Get(ctx, APIServiceName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range apiService.Status.Conditions {
		if condition.Type != apiregistrationv1.Available {
			continue
		}
		if condition.Status != apiregistrationv1.ConditionTrue {
			return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
		}
		_, err := s.admin.Discovery().ServerResourcesForGroupVersion(groupVersion)
		return err
	}
	return errors.New("it has no condition Available yet")
}

// Stop removes the endpoint of the server, as for a terminating pod, sends SIGTERM and
// waits for its end.
func (s *Server) Stop(ctx context.Context) error {
	if s.process == nil {
		return nil
	}
	return errors.Join(
		publishEndpoint(ctx, s.admin, s.slice, s.Address, s.Port, false),
		s.process.Stop(),
		s.findDefects(),
	)
}

// LeadThrough sets the endpoint of the APIService to another port of the server's address,
// where a test forwards connections to the server. The server's own Port restores the
// endpoint.
func (s *Server) LeadThrough(ctx context.Context, port int) error {
	return publishEndpoint(ctx, s.admin, s.slice, s.Address, port, true)
}

// Kill ends the server as kill -9 does.
func (s *Server) Kill() { s.process.Kill() }

// Process is the process that was started last.
func (s *Server) Process() *Process { return s.process }

// findDefects returns messages in the output that no run of a server may have.
func (s *Server) findDefects() error {
	output := s.process.Output()
	if _, after, found := strings.Cut(output, "panic: "); found {
		return fmt.Errorf("%s panicked, see %s:\n%.4000s", ServerName, s.log, after)
	}
	const separator = "==================\n"
	for report := range strings.SplitSeq(output, separator) {
		if strings.HasPrefix(report, "WARNING: DATA RACE") && !isKnownRace(report) {
			return fmt.Errorf("%s has a data race, see %s:\n%s", ServerName, s.log, report)
		}
	}
	return nil
}

// isKnownRace recognizes a race of the generic API server, between the controller of its
// serving certificate, which copies the settings once it has started, and setting what the
// copies do not need: a callback, or the preference of cipher suites, which crypto/tls
// ignores, when HTTP/2 is configured. Either may come first.
func isKnownRace(report string) bool {
	return strings.Contains(report, "crypto/tls.(*Config).Clone()") &&
		strings.Contains(report, "(*DynamicServingCertificateController).syncCerts()") &&
		(strings.Contains(report, "(*SecureServingInfo).tlsConfig()") || strings.Contains(report, "golang.org/x/net/http2.ConfigureServer()"))
}
