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

package evaluators

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/promql"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
)

const (
	// authorizationHeader is the header that credentials are sent in.
	authorizationHeader = "Authorization"
	// queryPath is where a Prometheus server evaluates a query.
	queryPath = "/api/v1/query"
	// maxResponseBytes bounds what is read of a response: one number is short.
	maxResponseBytes = 1 << 20
	// maxHeaderBytes bounds the header fields of a response.
	maxHeaderBytes = 64 << 10
	// maxReasonBytes bounds the part of a parser's error that messages show.
	maxReasonBytes = 256
	// maxIdleConnections bounds the connections that are kept for later.
	maxIdleConnections = 100
	idleTimeout        = 90 * time.Second
	handshakeTimeout   = 10 * time.Second
)

// newTransport returns a transport without a proxy, whose responses are bounded.
func newTransport() *http.Transport {
	return &http.Transport{
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           maxIdleConnections,
		MaxIdleConnsPerHost:    queries.MaxInFlight,
		IdleConnTimeout:        idleTimeout,
		TLSHandshakeTimeout:    handshakeTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
}

// prometheusRequest is how a server is queried.
type prometheusRequest struct {
	// name is what messages call the server.
	name      string
	address   *url.URL
	headers   http.Header
	transport http.RoundTripper
	// timeout is how long the server may evaluate.
	timeout time.Duration
}

// send returns the result of a query. Every error is a *queries.Error that names one
// of a few kinds of failure. Anything could respond at an address that a user gave, so
// no message contains parts of a response, or details of the connection.
func (r *prometheusRequest) send(ctx context.Context, query string) (queries.Result, error) {
	parameters := url.Values{"query": {query}, "timeout": {r.timeout.String()}}
	status, body, err := r.do(ctx, http.MethodPost, parameters)
	if err == nil && (status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented) {
		// Some proxies forward only reads.
		status, body, err = r.do(ctx, http.MethodGet, parameters)
	}
	if err != nil {
		return queries.Result{}, explainConnectionError(r.name, err)
	}
	if status/100 != 2 {
		return queries.Result{}, explainStatus(r.name, status, errorTypeOf(body), query)
	}
	return readResponse(r.name, body)
}

// do sends one request and reads the response.
func (r *prometheusRequest) do(ctx context.Context, method string, parameters url.Values) (status int, body []byte, err error) {
	address := *r.address
	address.Path, address.RawPath = strings.TrimRight(address.Path, "/")+queryPath, ""
	content, contentType := parameters.Encode(), "application/x-www-form-urlencoded"
	if method == http.MethodGet {
		address.RawQuery = strings.Trim(address.RawQuery+"&"+content, "&")
		content, contentType = "", ""
	}
	request, err := http.NewRequestWithContext(ctx, method, address.String(), strings.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	maps.Copy(request.Header, r.headers)
	// net/http ignores this one among the headers.
	request.Host = cmp.Or(r.headers.Get("Host"), request.Host)
	client := &http.Client{
		Transport: r.transport,
		// Headers and query are for this server and no other.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxResponseBytes+1))
	if err == nil && len(body) > maxResponseBytes {
		err = errTooLarge
	}
	return response.StatusCode, body, err
}

// errTooLarge means that a response has more bytes than are read.
var errTooLarge = errors.New("the response is too large")

// explainConnectionError returns the error for a server that did not respond.
func explainConnectionError(name string, err error) error {
	var unresolved *net.DNSError
	var untrusted *tls.CertificateVerificationError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, egress.ErrNotAllowed):
		return notAllowed(name)
	case errors.Is(err, egress.ErrAPIServersUnknown):
		return serverFault("%s is not queried: %v", name, egress.ErrAPIServersUnknown)
	case errors.Is(err, errTooLarge):
		return serverFault("%s: the response is larger than %d bytes: is that Prometheus?", name, maxResponseBytes)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return serverFault("%s did not respond in time", name)
	case errors.As(err, &unresolved):
		return serverFault("%s cannot be resolved: is the host right?", name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return serverFault("%s: connection refused: is the port right, and does the server run?", name)
	case errors.As(err, &untrusted):
		return serverFault("%s has a TLS certificate that is not trusted: are tlsConfig.ca and tlsConfig.serverName right?", name)
	default:
		return serverFault("%s: the connection failed: are the scheme, the port and the TLS configuration right?", name)
	}
}

func notAllowed(name string) error {
	return failure(v1alpha1.ReasonServerNotAllowed, "%s is not allowed by --trigger-allowed-servers: have the administrator add it", name)
}

// Types of errors in responses of Prometheus.
const (
	errorBadData   = "bad_data"
	errorExecution = "execution"
	errorTimeout   = "timeout"
	errorCanceled  = "canceled"
)

// explainStatus returns the error for a response that has no result.
func explainStatus(name string, status int, errorType, query string) error {
	switch {
	case errorType == errorBadData || errorType == errorExecution:
		return rejected(name, status, query)
	case errorType == errorTimeout || errorType == errorCanceled:
		return failure(v1alpha1.ReasonServerFailed, "%s aborted the query: make it cheaper", name)
	case status/100 == 4:
		return failure(v1alpha1.ReasonServerRefused, "%s rejects the request (HTTP status %d): are the credentials, the headers and the path right?", name, status)
	case status/100 == 3:
		return serverFault("%s redirects (HTTP status %d), which is not followed: give the address of Prometheus itself", name, status)
	default:
		return serverFault("%s failed (HTTP status %d)", name, status)
	}
}

// rejected returns the error for a query that a server rejects. The reason is that of
// the parser in this process.
func rejected(name string, status int, query string) error {
	if err := promql.Parse(query); err != nil {
		return failure(v1alpha1.ReasonQueryRejected, "%s rejects the query (HTTP status %d): %s", name, status, shorten(err.Error()))
	}
	return failure(v1alpha1.ReasonQueryRejected, "%s rejects the query (HTTP status %d): run it in the server's own interface to see why", name, status)
}

func shorten(text string) string {
	if len(text) <= maxReasonBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxReasonBytes], "") + "…"
}
