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

// Package portcheck is what the controller and the resolvers agree on about how to
// query which proxy ports a resolver serves for an ElastiService, and whether it
// accepts connections there. A resolver listens on a proxy port as long as there is
// one, and accepts connections while resolvers are in the path of the Service, or are
// about to be. The query goes to the resolver's health port: it is no traffic of any
// Service.
//
// It does not know the state of a port, which the resolver gives to Handler. Begin with
// Query.
package portcheck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// Path is where resolvers respond to queries.
	Path = "/proxyports"
	// MaxPorts is how many ports one query may be about.
	MaxPorts = 1024

	// The parameters of the query.
	parameterService = "service"
	parameterUID     = "uid"
	parameterPort    = "port"
	parameterAccept  = "accept"

	// notAccepting follows a port in the line that says that the resolver only listens
	// there. A line without it comes before: it is all that an earlier version knows.
	notAccepting = " not accepting"

	// maxResponseBytes bounds the body of a response: a port takes 12 bytes at most, and
	// as many again with what follows it in another line.
	maxResponseBytes = (2*12 + len(notAccepting)) * MaxPorts
)

// State is whether a resolver serves a port.
type State int

const (
	// Unknown: the resolver does not serve the port.
	Unknown State = iota
	// Listening: it listens on the port, and lets connections wait until it knows that
	// resolvers are in the path of the Service.
	Listening
	// Accepting: it serves connections to the port.
	Accepting
)

// ErrNotSupported means that a resolver does not know the query: it is of an
// earlier version.
var ErrNotSupported = errors.New("the resolver does not say which proxy ports it serves")

// Port is a port of a public Service and the proxy port that belongs to it.
type Port struct{ Service, Proxy int32 }

// Query is which of the ports a resolver serves for one ElastiService.
type Query struct {
	// Service is the public Service.
	Service types.NamespacedName
	// UID is that of the ElastiService: one that was created again is another.
	UID types.UID
	// Ports are those that the query is about, MaxPorts at most.
	Ports []Port
	// Accept is true when the resolver is about to be put in the path of the Service:
	// it is to accept connections from now on, also before it observes that.
	Accept bool
}

// Encode returns the parameters of the URL that has the query.
func (q *Query) Encode() string {
	values := url.Values{parameterService: {q.Service.String()}, parameterUID: {string(q.UID)}}
	for _, port := range q.Ports {
		values.Add(parameterPort, port.String())
	}
	if q.Accept {
		values.Set(parameterAccept, strconv.FormatBool(true))
	}
	return values.Encode()
}

// Parse reads a query from the parameters of a URL.
func Parse(values url.Values) (*Query, error) {
	namespace, name, ok := strings.Cut(values.Get(parameterService), "/")
	if !ok {
		return nil, fmt.Errorf("%s: must be namespace/name", parameterService)
	}
	q := &Query{Service: types.NamespacedName{Namespace: namespace, Name: name}, UID: types.UID(values.Get(parameterUID))}
	if q.UID == "" {
		return nil, fmt.Errorf("%s: must be set", parameterUID)
	}
	if len(values[parameterPort]) > MaxPorts {
		return nil, fmt.Errorf("%s: there are %d, more than %d", parameterPort, len(values[parameterPort]), MaxPorts)
	}
	for _, text := range values[parameterPort] {
		port, err := parsePort(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", parameterPort, err)
		}
		q.Ports = append(q.Ports, port)
	}
	if text := values.Get(parameterAccept); text != "" {
		accept, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%s: must be true or false", parameterAccept)
		}
		q.Accept = accept
	}
	return q, nil
}

// String returns a port as queries and responses write it.
func (p Port) String() string {
	return strconv.Itoa(int(p.Service)) + ":" + strconv.Itoa(int(p.Proxy))
}

func parsePort(text string) (Port, error) {
	service, proxy, _ := strings.Cut(text, ":")
	serviceNumber, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return Port{}, fmt.Errorf("the Service port: %w", err)
	}
	proxyNumber, err := strconv.ParseUint(proxy, 10, 16)
	if err != nil {
		return Port{}, fmt.Errorf("the proxy port: %w", err)
	}
	return Port{Service: int32(serviceNumber), Proxy: int32(proxyNumber)}, nil
}

// Handler responds to queries with those of the ports that are served, a line each, and
// another one for each of these where no connections are accepted.
func Handler(state func(*Query, Port) State) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := Parse(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var body []byte
		for _, port := range q.Ports {
			switch state(q, port) {
			case Accepting:
				body = append(append(body, port.String()...), '\n')
			case Listening:
				body = append(append(body, port.String()...), '\n')
				body = append(append(append(body, port.String()...), notAccepting...), '\n')
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		// It fails when the client has left.
		_, _ = w.Write(body)
	})
}

// Send queries the resolver at the other end of a connection to its health port, and
// returns the least State of the ports: Accepting without any. A resolver of an earlier
// version does not say where it only listens. The error matches ErrNotSupported
// where the resolver does not know the query. The deadlines are those of the
// connection, which the caller closes.
func (q *Query) Send(connection net.Conn) (State, error) {
	if _, err := fmt.Fprintf(connection, "GET %s?%s HTTP/1.1\r\nHost: elasti-resolver\r\nConnection: close\r\n\r\n", Path, q.Encode()); err != nil {
		return Unknown, fmt.Errorf("querying which proxy ports are served: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return Unknown, fmt.Errorf("reading which proxy ports are served: %w", err)
	}
	// The caller closes the connection.
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return Unknown, ErrNotSupported
	default:
		return Unknown, fmt.Errorf("querying which proxy ports are served: unexpected response %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(maxResponseBytes)))
	if err != nil {
		return Unknown, fmt.Errorf("reading which proxy ports are served: %w", err)
	}
	lines := sets.New(strings.Split(string(body), "\n")...)
	least := Accepting
	for _, port := range q.Ports {
		switch {
		case !lines.Has(port.String()):
			return Unknown, nil
		case lines.Has(port.String() + notAccepting):
			least = Listening
		}
	}
	return least, nil
}
