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
	"net/http"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/sharedport"
)

// Destination is a destination.Find for the shared port. A request for
// sharedport.Host is for no service: its reply says whether the table has one of the
// services that it names.
func (t *Table) Destination(field func(name string) []string) (*service.Service, service.Port, *localreply.Reply) {
	hosts := field("Host")
	if len(hosts) > 0 && hosts[0] == sharedport.Host {
		return nil, service.Port{}, t.known(field(sharedport.FieldService))
	}
	if name := t.options.HostHeader; name != "" {
		if values := field(name); len(values) > 0 {
			hosts = values
		}
	}
	if len(hosts) > 0 {
		if svc, port := t.Find(hosts[0]); svc != nil {
			return svc, port, nil
		}
	}
	return nil, service.Port{}, localreply.New(http.StatusMisdirectedRequest, localreply.ReasonUnknownHost,
		"no service on this port has the requested host name; use name.namespace.svc")
}

// known returns the reply to a query whether the table has one of
// the services that the values of a header field name.
func (t *Table) known(names []string) *localreply.Reply {
	for _, name := range names {
		if svc, _ := t.Find(name); svc != nil {
			return localreply.New(sharedport.StatusKnown, localreply.ReasonKnownHost, "a service on this port has that host name")
		}
	}
	return localreply.New(sharedport.StatusUnknown, localreply.ReasonUnknownHost, "no service on this port has that host name")
}
