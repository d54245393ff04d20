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

// Package destination is how the requests of a connection find their service: on a proxy
// port all have the same one, on the shared port each may have another. It knows nothing
// of how the services are found. Begin with Find.
package destination

import (
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/localreply"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
)

// Find returns the service and port that a request is for, given a way to read
// its header fields, where the name host stands for the host that it requests.
// When there is none, it returns nil and the local reply.
type Find func(field func(name string) []string) (*service.Service, service.Port, *localreply.Reply)

// Fixed returns a Find whose result is always the same.
func Fixed(svc *service.Service, port service.Port) Find {
	return func(func(string) []string) (*service.Service, service.Port, *localreply.Reply) { return svc, port, nil }
}
