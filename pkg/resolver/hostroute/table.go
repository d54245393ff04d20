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
	"slices"
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
	services map[types.NamespacedName][]entry
}

// entry is a port of a service.
type entry struct {
	service *service.Service
	port    service.Port
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
	return &Table{options: options, services: map[types.NamespacedName][]entry{}}
}

// Set makes a port of a service reachable, instead of any other with the same
// number of a Service of the same name.
func (t *Table) Set(svc *service.Service, port service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := svc.PublicServiceKey()
	t.services[key] = append(t.without(key, port.Number), entry{svc, port})
}

// Remove ends that, unless another service has the port by now.
func (t *Table) Remove(svc *service.Service, port service.Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := svc.PublicServiceKey()
	if !slices.ContainsFunc(t.services[key], func(e entry) bool { return e.service == svc && e.port.Number == port.Number }) {
		return
	}
	if rest := t.without(key, port.Number); len(rest) > 0 {
		t.services[key] = rest
	} else {
		delete(t.services, key)
	}
}

// without returns a copy of the entries under a key but for that of one port. It must
// be called with mu held.
func (t *Table) without(key types.NamespacedName, number int32) []entry {
	return slices.DeleteFunc(slices.Clone(t.services[key]), func(e entry) bool { return e.port.Number == number })
}

// Lookup returns the service that has a port of a public Service, or nil.
func (t *Table) Lookup(public types.NamespacedName, number int32) *service.Service {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.services[public] {
		if e.port.Number == number {
			return e.service
		}
	}
	return nil
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
	entries := t.services[name.Service]
	port := name.Port
	if port == 0 && len(entries) == 1 {
		return entries[0].service, entries[0].port
	}
	if port == 0 {
		port = httpPort
	}
	for _, e := range entries {
		if e.port.Number == port {
			return e.service, e.port
		}
	}
	return nil, service.Port{}
}
