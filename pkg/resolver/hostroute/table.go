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

package hostroute

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// httpPort is the port that a URL without one means.
const httpPort = 80

// Table is the services on the shared port by host name. It is safe for concurrent use.
type Table struct {
	options Options

	mu       sync.RWMutex
	services map[types.NamespacedName]*listing
}

type listing struct {
	service *service.Service
	ports   []service.Port
}

// Options are what a Table is made of.
type Options struct {
	// ClusterDomain is the domain of Service names.
	ClusterDomain string
	// HostHeader is the header field that has the host name where it is set;
	// otherwise Host has. Empty: always Host.
	HostHeader string
}

// New returns an empty table.
func New(options Options) *Table {
	return &Table{options: options, services: map[types.NamespacedName]*listing{}}
}

func keyOf(svc *service.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: svc.Namespace, Name: svc.PublicService}
}

// Add makes a port of a service reachable.
func (t *Table) Add(svc *service.Service, port service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := keyOf(svc)
	found := t.services[key]
	if found == nil || found.service != svc {
		found = &listing{service: svc}
		t.services[key] = found
	}
	found.ports = append(found.ports, port)
}

// Remove ends that.
func (t *Table) Remove(svc *service.Service, port service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := keyOf(svc)
	found := t.services[key]
	if found == nil || found.service != svc {
		return
	}
	kept := make([]service.Port, 0, len(found.ports))
	for _, candidate := range found.ports {
		if candidate != port {
			kept = append(kept, candidate)
		}
	}
	found.ports = kept
	if len(kept) == 0 {
		delete(t.services, key)
	}
}

// Find returns the service and port that a host name means, or nil. A host name
// without a port means the only port there is, or port 80.
func (t *Table) Find(host string) (*service.Service, service.Port) {
	name, ok := Parse(host, t.options.ClusterDomain)
	if !ok {
		return nil, service.Port{}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := t.services[name.Service]
	if found == nil {
		return nil, service.Port{}
	}
	wanted := name.Port
	if wanted == 0 && len(found.ports) == 1 {
		return found.service, found.ports[0]
	}
	if wanted == 0 {
		wanted = httpPort
	}
	for _, port := range found.ports {
		if port.Number == wanted {
			return found.service, port
		}
	}
	return nil, service.Port{}
}
