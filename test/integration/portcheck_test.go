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
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// accessLog is what resolvers log of connections. It is safe for concurrent use.
type accessLog struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

// Write implements io.Writer.
func (l *accessLog) Write(lines []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(lines)
}

// of returns the lines about a namespace.
func (l *accessLog) of(namespace string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.lines.String()) {
		if strings.Contains(line, strconv.Quote(namespace)) {
			found = append(found, line)
		}
	}
	return found
}

// runResolver runs a resolver that serves traffic, until it is ended or the test ends.
func runResolver(t *testing.T, log *accessLog) (address string, end func()) {
	t.Helper()
	running, err := shared.RunResolver(t.Context(), log)
	if err != nil {
		t.Fatalf("running a resolver: %v", err)
	}
	end = sync.OnceFunc(func() {
		if err := running.End(context.Background()); err != nil {
			t.Errorf("ending a resolver: %v", err)
		}
	})
	t.Cleanup(end)
	return running.Address, end
}

// TestChecksOfTheControllerWakeNothing has a database, and a server that greets, be
// asleep from the start, as the first client of each wakes them: at its first byte, and
// as soon as it connects. What the controller does to find out whether resolvers serve
// their ports is no client, and neither is it when a resolver is replaced.
func TestChecksOfTheControllerWakeNothing(t *testing.T) {
	for _, protocol := range []string{"postgresql", "elasti.truefoundry.com/server-first"} {
		t.Run(protocol, func(t *testing.T) {
			namespace := newNamespace(t)
			createDeployment(t, namespace, 0)
			service := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "app"},
				Spec:       corev1.ServiceSpec{Selector: appLabels, Ports: []corev1.ServicePort{{Port: 5432, AppProtocol: ptr.To(protocol)}}},
			}
			if _, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
				t.Fatalf("creating the Service: %v", err)
			}
			log := &accessLog{}
			address, end := runResolver(t, log)
			createElastiService(t, namespace, newElastiService("app"))
			waitForMode(t, namespace, v1alpha1.ModeProxy)
			waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address, address)
			end()
			waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address)
			runResolver(t, log)
			waitForResolverEndpoints(t, namespace, discoveryv1.AddressTypeIPv4, shared.Resolvers[0].Address, address)

			if replicas := desiredReplicas(t, namespace); replicas != 0 {
				t.Errorf("the target has %d replicas before a client came", replicas)
			}
			if lines := log.of(namespace); len(lines) > 0 {
				t.Errorf("resolvers have seen clients: %s", lines)
			}
			ports := readElastiService(t, namespace).Status.ProxyPorts
			if len(ports) != 1 {
				t.Fatalf("the proxy ports are %+v", ports)
			}
			client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(int(ports[0].ProxyPort))))
			if err != nil {
				t.Fatalf("connecting as a client: %v", err)
			}
			defer client.Close()
			if _, err := client.Write([]byte{0, 0, 0, 8}); err != nil {
				t.Fatalf("sending as a client: %v", err)
			}
			waitForDesired(t, namespace, 1)
			// After a half-close, the client could still wait for a response.
			if err := errors.Join(client.(*net.TCPConn).SetLinger(0), client.Close()); err != nil {
				t.Fatal(err)
			}
			// So others would have shown.
			eventually(t, "the access log has one client", func(context.Context) string {
				if lines := log.of(namespace); len(lines) != 1 {
					return fmt.Sprintf("it has %s", lines)
				}
				return ""
			})
		})
	}
}
