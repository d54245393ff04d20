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

// Package sharedport is what the controller and the resolvers agree on about
// the shared HTTP port, where the host name decides between many Services: how
// to query whether a resolver knows one of them. The query has a host name of
// its own, so that it is for no Service: it wakes nothing, reaches no pod and
// counts as traffic of no Service.
//
// It knows nothing of which Services there are. Begin with Knows.
package sharedport

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

const (
	// Host is the host name of the query. It has no form that a Service has.
	Host = "resolver.elasti.truefoundry.com"
	// FieldService is the header field that has the host name, with the Service
	// port, that the query is about.
	FieldService = "X-Elasti-Service"

	// StatusKnown is the response for a host name that the resolver serves. A status
	// that is neither this nor StatusUnknown comes from a server that does not know the
	// query.
	StatusKnown = http.StatusNoContent
	// StatusUnknown is the response for any other host name.
	StatusUnknown = http.StatusNotFound
)

// HostName is the host name under which a port of a Service is requested.
func HostName(namespace, service string, port int32) string {
	return service + "." + namespace + ".svc:" + strconv.Itoa(int(port))
}

// Knows queries whether the resolver at the other end of a connection knows a
// host name. It returns an error when the response says neither. The deadlines
// are those of the connection, which the caller closes.
func Knows(connection net.Conn, hostName string) (bool, error) {
	_, err := fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: %s\r\n%s: %s\r\nConnection: close\r\n\r\n", Host, FieldService, hostName)
	if err != nil {
		return false, fmt.Errorf("requesting %s: %w", hostName, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return false, fmt.Errorf("reading the response about %s: %w", hostName, err)
	}
	// The caller closes the connection, and neither response has a body to read.
	_ = response.Body.Close()
	switch response.StatusCode {
	case StatusKnown:
		return true, nil
	case StatusUnknown:
		return false, nil
	default:
		return false, fmt.Errorf("requesting %s: unexpected status %s", hostName, response.Status)
	}
}
