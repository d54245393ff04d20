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
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// requestsEach is how many requests each application gets, one after the other. The
	// first one wakes it.
	requestsEach = 5
	// heldRequestTimeout is longer than a request is held until there is a server.
	heldRequestTimeout = 90 * time.Second
	// kubeletInterval is how often new pods are started.
	kubeletInterval = 50 * time.Millisecond
)

// servedApplication is an application whose pods accept connections, at a port of the
// address of the server, and its clients.
type servedApplication struct {
	namespace string
	// proxyAddress is its proxy port at the resolver.
	proxyAddress string
	clients      sync.WaitGroup
}

// newServedApplication creates an application that sleeps behind a resolver.
func newServedApplication(t *testing.T, resolver string) *servedApplication {
	t.Helper()
	a := &servedApplication{namespace: newNamespace(t)}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(shared.Server.Address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, a.namespace) }),
		ReadHeaderTimeout: heldRequestTimeout,
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	createDeployment(t, a.namespace, 0)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.ServiceSpec{
		Selector: appLabels,
		Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt(listener.Addr().(*net.TCPAddr).Port)}},
	}}
	if _, err := shared.Kubernetes.CoreV1().Services(a.namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Service: %v", err)
	}
	createElastiService(t, a.namespace, newElastiService("app"))
	waitForMode(t, a.namespace, v1alpha1.ModeProxy)
	waitForResolverEndpoints(t, a.namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address, resolver)
	ports := readElastiService(t, a.namespace).Status.ProxyPorts
	if len(ports) != 1 {
		t.Fatalf("the proxy ports are %+v", ports)
	}
	a.proxyAddress = net.JoinHostPort(resolver, strconv.Itoa(int(ports[0].ProxyPort)))
	return a
}

// send starts a client, and returns when its first request, which wakes the target, was
// sent.
func (a *servedApplication) send(t *testing.T) {
	t.Helper()
	sent := make(chan struct{})
	reportSent := sync.OnceFunc(func() { close(sent) })
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { reportSent() }})
	a.clients.Go(func() {
		defer reportSent()
		client := &http.Client{Transport: &http.Transport{}, Timeout: heldRequestTimeout}
		defer client.CloseIdleConnections()
		for number := range requestsEach {
			if err := a.get(ctx, client); err != nil {
				t.Errorf("request %d to %s: %v", number, a.namespace, err)
				return
			}
		}
	})
	<-sent
}

// get sends a request, and expects the response of the application.
func (a *servedApplication) get(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.proxyAddress+"/", http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || string(body) != a.namespace {
		return fmt.Errorf("the response is %s: %s", response.Status, body)
	}
	return nil
}

// runPods runs the pods of applications when they are created, as a kubelet does, until the
// test ends.
func runPods(t *testing.T, applications []*servedApplication) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			for _, a := range applications {
				if err := a.runNewPods(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("running the pods of %s: %v", a.namespace, err)
				}
			}
		}, kubeletInterval)
	})
}

func (a *servedApplication) runNewPods(ctx context.Context) error {
	pods, err := shared.Kubernetes.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		name := pods.Items[i].Name
		if pods.Items[i].Spec.NodeName != "" {
			continue
		}
		if err := shared.Node.RunAt(ctx, a.namespace, name, shared.Server.Address); err != nil {
			return err
		}
		if err := shared.Node.SetReady(ctx, a.namespace, name, true); err != nil {
			return err
		}
	}
	return nil
}

// An installation with the embedded storage is upgraded to the one in the host cluster
// while clients come to sleeping services: before there is no server, meanwhile, and when
// there is one again.
func TestNoRequestFailsWhileTheStorageMoves(t *testing.T) {
	const services, inEachPhase = 20, 5
	installClusterStorage(t)
	resolver, _ := runResolver(t, &accessLog{})
	var applications []*servedApplication
	for range services {
		applications = append(applications, newServedApplication(t, resolver))
	}
	runPods(t, applications)
	next := 0
	sendToSome := func() {
		t.Helper()
		for _, a := range applications[next : next+inEachPhase] {
			a.send(t)
		}
		next += inEachPhase
	}
	sendToSome()
	moveToHostCluster(t, sendToSome)
	sendToSome()
	for _, a := range applications {
		a.clients.Wait()
	}
	for _, a := range applications {
		waitForMode(t, a.namespace, v1alpha1.ModeServe)
	}
}
