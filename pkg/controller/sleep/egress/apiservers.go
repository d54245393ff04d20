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

package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// ErrAPIServersUnknown means that no server is queried, because the addresses of the
// API servers of the cluster are not known.
var ErrAPIServersUnknown = errors.New("the addresses of the Kubernetes API are not known: allow elasti-apiserver to get the EndpointSlice default/" + apiServersSlice)

const (
	// apiServersSlice is the EndpointSlice in which the API servers publish their
	// addresses.
	apiServersSlice = "kubernetes"
	// apiServersMaxAge is for how long it is cached.
	apiServersMaxAge = 30 * time.Second
	// apiServersRetry is the pause after a failed attempt to read it, and
	// apiServersTimeout ends one that hangs.
	apiServersRetry   = 5 * time.Second
	apiServersTimeout = 2 * time.Second
)

// APIServers knows the addresses of the API servers of the cluster. It is safe for
// concurrent use.
type APIServers struct {
	slices discoveryclient.EndpointSliceInterface
	clock  clock.PassiveClock

	mu sync.Mutex
	// known are the addresses as they were last read, valid when loaded is true.
	known  []apiServer
	loaded bool
	// next is when they are to be read again.
	next time.Time
}

// apiServer is the address of an API server. Port is 0 for all ports.
type apiServer struct {
	address netip.Addr
	port    uint16
}

// NewAPIServers returns the API servers of a cluster. It makes no request.
func NewAPIServers(slices discoveryclient.EndpointSlicesGetter, clock clock.PassiveClock) *APIServers {
	return &APIServers{slices: slices.EndpointSlices(metav1.NamespaceDefault), clock: clock}
}

// has reports whether an API server has an address. While the addresses cannot be
// read, those that were read before count; if there are none, the error is
// ErrAPIServersUnknown.
func (a *APIServers) has(ctx context.Context, address netip.Addr, port uint16) (bool, error) {
	known, err := a.current(ctx)
	return slices.ContainsFunc(known, func(server apiServer) bool {
		return server.address == address && (server.port == 0 || server.port == port)
	}), err
}

// current returns the addresses, and reads them when they are too old. Concurrent
// callers wait for the response.
func (a *APIServers) current(ctx context.Context) ([]apiServer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.clock.Now(); !now.Before(a.next) {
		// The response is for all callers, also when the first of them is canceled.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiServersTimeout)
		defer cancel()
		a.read(ctx, now)
	}
	if !a.loaded {
		return nil, ErrAPIServersUnknown
	}
	return a.known, nil
}

// read reads the addresses. It must be called with mu held.
func (a *APIServers) read(ctx context.Context, now time.Time) {
	slice, err := a.slices.Get(ctx, apiServersSlice, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// The API servers of this cluster do not register themselves.
		a.known, a.loaded, a.next = nil, true, now.Add(apiServersMaxAge)
	case err != nil:
		a.next = now.Add(apiServersRetry)
		klog.FromContext(ctx).Error(err, "Failed to read the addresses of the Kubernetes API, which triggers must not reach, will retry", "retryIn", apiServersRetry, "lastKnown", len(a.known), "everRead", a.loaded)
	default:
		a.known, a.loaded, a.next = apiServersOf(slice), true, now.Add(apiServersMaxAge)
	}
}

func apiServersOf(slice *discoveryv1.EndpointSlice) []apiServer {
	ports := []uint16{}
	for _, port := range slice.Ports {
		if port.Port == nil {
			ports = []uint16{0}
			break
		}
		ports = append(ports, uint16(*port.Port))
	}
	var servers []apiServer
	for _, endpoint := range slice.Endpoints {
		for _, text := range endpoint.Addresses {
			address, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			for _, port := range ports {
				servers = append(servers, apiServer{canonical(address), port})
			}
		}
	}
	return servers
}
