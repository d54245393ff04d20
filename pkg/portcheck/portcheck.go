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
// ask a resolver which proxy ports it serves for an ElastiService. The question
// goes to the resolver's health port: it is no traffic of any Service.
package portcheck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Path is where the question is answered.
	Path = "/proxyports"
	// MaxPorts is how many ports one question may be about.
	MaxPorts = 1024

	// The parameters of the question.
	parameterService = "service"
	parameterUID     = "uid"
	parameterPort    = "port"

	// maxAnswerBytes bounds the body of an answer: a port takes 12 bytes at most.
	maxAnswerBytes = 12 * MaxPorts
)

// ErrNotSupported means that a resolver does not know the question: it is of an
// earlier version.
var ErrNotSupported = errors.New("the resolver does not answer which proxy ports it serves")

// Port is a port of a public Service and the proxy port that belongs to it.
type Port struct{ Service, Proxy int32 }

// Question is which of the ports a resolver serves for one ElastiService.
type Question struct {
	// Service is the public Service.
	Service types.NamespacedName
	// UID is that of the ElastiService: one that was created again is another.
	UID types.UID
	// Ports are those that the question is about, MaxPorts at most.
	Ports []Port
}

// Encode returns the question as the query of a URL.
func (q *Question) Encode() string {
	values := url.Values{parameterService: {q.Service.String()}, parameterUID: {string(q.UID)}}
	for _, port := range q.Ports {
		values.Add(parameterPort, port.String())
	}
	return values.Encode()
}

// Parse returns the question that the query of a URL has.
func Parse(values url.Values) (*Question, error) {
	namespace, name, ok := strings.Cut(values.Get(parameterService), "/")
	if !ok {
		return nil, fmt.Errorf("%s: want namespace/name", parameterService)
	}
	q := &Question{Service: types.NamespacedName{Namespace: namespace, Name: name}, UID: types.UID(values.Get(parameterUID))}
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
	return q, nil
}

// String returns a port as questions and answers write it.
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

// Handler answers questions with those of the ports for which serves returns true,
// a line each.
func Handler(serves func(*Question, Port) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := Parse(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var answer []byte
		for _, port := range q.Ports {
			if serves(q, port) {
				answer = append(append(answer, port.String()...), '\n')
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		// It fails when who asked has gone.
		_, _ = w.Write(answer)
	})
}

// Ask asks the resolver at the other end of a connection to its health port, and
// reports whether it serves all of the ports. Its error matches ErrNotSupported
// where the resolver does not know the question. The deadlines are those of the
// connection, which the caller closes.
func (q *Question) Ask(connection net.Conn) (bool, error) {
	if _, err := fmt.Fprintf(connection, "GET %s?%s HTTP/1.1\r\nHost: elasti-resolver\r\nConnection: close\r\n\r\n", Path, q.Encode()); err != nil {
		return false, fmt.Errorf("asking which proxy ports are served: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return false, fmt.Errorf("reading which proxy ports are served: %w", err)
	}
	// The caller closes the connection.
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return false, ErrNotSupported
	default:
		return false, fmt.Errorf("asking which proxy ports are served: unexpected answer %s", response.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return false, fmt.Errorf("reading which proxy ports are served: %w", err)
	}
	served := strings.Split(string(answer), "\n")
	return !slices.ContainsFunc(q.Ports, func(port Port) bool { return !slices.Contains(served, port.String()) }), nil
}
