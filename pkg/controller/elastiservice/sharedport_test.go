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

package elastiservice

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/sharedport"
)

// sharedPort is a resolver's shared port that responds to queries.
type sharedPort struct {
	*httptest.Server

	mu sync.Mutex
	// status is the response for a host name. Other host names are unknown.
	status map[string]int
}

func newSharedPort(t *testing.T) *sharedPort {
	t.Helper()
	s := &sharedPort{status: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.Host != sharedport.Host {
			t.Errorf("a request for host %q, which may be a Service", r.Host)
		}
		status, ok := s.status[r.Header.Get(sharedport.FieldService)]
		if !ok {
			status = sharedport.StatusUnknown
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sharedPort) respond(hostName string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[hostName] = status
}

// dial leads all that is dialed to the server.
func (s *sharedPort) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
}

// withoutProxyPorts makes all Services use the shared port.
func withoutProxyPorts(c *cluster) {
	c.options.ProxyPortRange = utilnet.PortRange{Base: 10000, Size: 1}
	c.options.SharedProxyPort = 8012
	till := cartElastiService()
	till.Name, till.UID, till.Spec.Service = "till", "till-uid", "till"
	till.Status.ProxyPorts = []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10000}}
	service := cartService()
	service.Name = "till"
	service.Spec.Ports = service.Spec.Ports[:1]
	c.create(service)
	c.create(till)
}

func TestSliceWaitsUntilTheSharedPortKnowsTheService(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withoutProxyPorts(c)
	resolver := newSharedPort(t)
	c.options.DialResolver = resolver.dial
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	if endpoints := c.resolverSlices("cart")[0].Endpoints; len(endpoints) > 0 {
		t.Errorf("endpoints are %+v before a resolver knows the Service", endpoints)
	}
	resolver.respond("cart.shop.svc:80", sharedport.StatusKnown)
	resolver.respond("cart.shop.svc:81", sharedport.StatusKnown)
	c.eventually(func() string {
		if len(c.resolverSlices("cart")[0].Endpoints) != 2 {
			return "both resolvers are listed"
		}
		return ""
	})
}

// A resolver of an earlier version does not know the query.
func TestSliceDoesNotWaitForResponsesThatSayNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withoutProxyPorts(c)
	resolver := newSharedPort(t)
	resolver.respond("cart.shop.svc:80", http.StatusMisdirectedRequest)
	c.options.DialResolver = resolver.dial
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventually(func() string {
		if slices := c.resolverSlices("cart"); len(slices) == 0 || len(slices[0].Endpoints) != 2 {
			return "both resolvers are listed"
		}
		return ""
	})
}
