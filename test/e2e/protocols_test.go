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
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// The ports of the Service whose application speaks every protocol; see
// test/application.
const (
	portHealth   = 80
	portWeb      = 8001
	portMirror   = 8002
	portGRPC     = 8003
	portEcho     = 8004
	portGreeting = 8005
	portTLS      = 8006
	// portH2C has the target port of portWeb and the appProtocol of HTTP/2 without TLS.
	portH2C = 8007
	// portBin is go-httpbin, a third-party application.
	portBin = 8008
)

// conversation is the exchange of one client in one protocol. The context bounds it.
type conversation struct {
	name string
	have func(context.Context, *host) error
}

// host is the peer of the clients: the Service, or a resolver in front of it.
type host struct {
	// at returns the address of a port of the Service.
	at func(port int) string
}

// url is an HTTP URL on a port.
func (h *host) url(port int, path string) string { return "http://" + h.at(port) + path }

// dial connects to a port. The connection is bounded by ctx.
func (h *host) dial(ctx context.Context, port int) (*net.TCPConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", h.at(port))
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			conn.Close()
			return nil, err
		}
	}
	return conn.(*net.TCPConn), nil
}

// conversations are all of them.
func conversations() []conversation {
	var all []conversation
	all = append(all, http1Conversations()...)
	all = append(all, http2Conversations()...)
	return append(all, streamConversations()...)
}

// conversationTimeout bounds one conversation, the wake included.
const conversationTimeout = 2 * time.Minute

// TestEveryProtocolIsHeldAtZeroAndForwardedAwake runs all conversations at once through the
// Service while the target sleeps, and again directly with the resolvers while it is awake,
// when the Service also has the pod as an endpoint.
func TestEveryProtocolIsHeldAtZeroAndForwardedAwake(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ports := []corev1.ServicePort{{Name: "http", Port: portHealth, TargetPort: intstr.FromString("http")}}
	for i, name := range []string{"web", "mirror", "grpc", "echo", "greeting", "tls"} {
		ports = append(ports, corev1.ServicePort{Name: name, Port: int32(portWeb + i), TargetPort: intstr.FromInt32(int32(8081 + i))})
	}
	ports = append(ports, corev1.ServicePort{
		Name: "h2c", Port: portH2C, TargetPort: intstr.FromInt32(8081), AppProtocol: ptr.To("kubernetes.io/h2c"),
	})
	app := s.asleep(cluster.ApplicationOptions{
		// Every client connects before the application listens.
		Arguments:    []string{"-protocols", "-start-delay=5s"},
		ServicePorts: ports,
		Spec: func(spec *v1alpha1.ElastiServiceSpec) {
			spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
		},
	})
	began := time.Now()
	s.converse("AtZero", &host{at: func(port int) string { return net.JoinHostPort(app.Address, strconv.Itoa(port)) }})
	resolvers := s.resolversOf(app)
	for _, resolver := range resolvers {
		got, err := cluster.Get(s.ctx, resolver.url(portHealth, "/"))
		s.check(err)
		s.checkResponse(app, got, "/")
		accepting, err := got.AcceptingSince()
		s.check(err)
		if !began.Before(accepting) {
			t.Fatalf("the application accepted connections at %s, before the first client came at %s", accepting, began)
		}
		s.checkPeer(got, true)
	}
	s.converse("Awake", resolvers...)
}

// resolversOf are the resolvers, as hosts for the application.
func (s *scene) resolversOf(app *cluster.Application) []*host {
	s.Helper()
	elastiService, err := s.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Get(s.ctx, app.Name, metav1.GetOptions{})
	s.check(err)
	proxyPorts := map[int]int{}
	for _, port := range elastiService.Status.ProxyPorts {
		proxyPorts[int(port.Port)] = int(port.ProxyPort)
	}
	addresses, err := s.ResolverAddresses(s.ctx)
	s.check(err)
	var resolvers []*host
	for _, address := range addresses {
		resolvers = append(resolvers, &host{at: func(port int) string {
			return net.JoinHostPort(address, strconv.Itoa(proxyPorts[port]))
		}})
	}
	if len(resolvers) == 0 {
		s.Fatal("there is no resolver")
	}
	return resolvers
}

// converse runs all conversations at the same time, with the hosts in turn, and expects all
// to succeed.
func (s *scene) converse(phase string, hosts ...*host) {
	s.Helper()
	all := conversations()
	failures := make([]error, len(all))
	ctx, cancel := context.WithTimeout(s.ctx, conversationTimeout)
	defer cancel()
	var ended sync.WaitGroup
	for i := range all {
		ended.Go(func() { failures[i] = all[i].have(ctx, hosts[i%len(hosts)]) })
	}
	ended.Wait()
	for i := range all {
		s.Run(phase+"/"+all[i].name, func(t *testing.T) {
			if failures[i] != nil {
				t.Error(failures[i])
			}
		})
	}
}

// expectStatus returns an error unless a response has the status.
func expectStatus(response *http.Response, want int) error {
	if response.StatusCode != want {
		return fmt.Errorf("status %s, want %d; %s", response.Status, want, response.Header.Get("X-Elasti-Answer"))
	}
	return nil
}
