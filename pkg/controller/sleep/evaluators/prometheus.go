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
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/credentials"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// DefaultUptimeWindow holds several scrapes at the usual intervals.
const DefaultUptimeWindow = time.Minute

const (
	// defaultUptimeFilter selects the up metric of Prometheus itself.
	defaultUptimeFilter = `container="prometheus"`
	// uptimeSamples is how many times the uptime is sampled in its window.
	uptimeSamples = 12
	// authorizationHeader is the header that the configured credential is for.
	authorizationHeader = "Authorization"
	// maxResponseBytes bounds what is read of a response: one number is short.
	maxResponseBytes = 1 << 20
	// maxReasonBytes bounds what is shown of a server's own words.
	maxReasonBytes = 256
)

// PrometheusOptions configure a Prometheus.
type PrometheusOptions struct {
	// ServerAddress is the URL of the server that triggers without a
	// serverAddress query. Empty means that they cannot be evaluated.
	ServerAddress string
	// AuthorizationHeaderFile holds the value of the Authorization header for
	// requests to ServerAddress, and to no other server. It is read for each
	// request. Empty means no header.
	AuthorizationHeaderFile string
	// UptimeWindow is for how long, up to now, what is measured must have been
	// scraped. It should be longer than the time between two evaluations, so
	// that no outage falls in between. Defaults to DefaultUptimeWindow.
	UptimeWindow time.Duration
	// Keys reads the credentials of triggers. Without it, triggers that refer
	// to some cannot be evaluated.
	Keys credentials.KeyReader
	// Timeout is how long a server may take to respond. Defaults to 10 s.
	Timeout time.Duration
	// Clock is the time. Defaults to the real clock.
	Clock clock.PassiveClock
}

// Prometheus evaluates triggers of the type prometheus. It is safe for
// concurrent use.
type Prometheus struct {
	options   PrometheusOptions
	transport *http.Transport
	// credentials are those of triggers.
	credentials *credentials.Store
	limiter     *queries.Limiter
}

var _ Evaluator = &Prometheus{}

// NewPrometheus returns an evaluator of triggers of the type prometheus.
func NewPrometheus(options PrometheusOptions) *Prometheus {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.UptimeWindow == 0 {
		options.UptimeWindow = DefaultUptimeWindow
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = queries.MaxInFlight
	return &Prometheus{
		options:     options,
		transport:   transport,
		credentials: credentials.NewStore(options.Keys, options.Clock, transport),
		limiter:     queries.NewLimiter(options.Clock, options.Timeout),
	}
}

// CloseIdleConnections closes the connections to servers that are not in use.
func (p *Prometheus) CloseIdleConnections() {
	p.transport.CloseIdleConnections()
	p.credentials.Clear()
}

// Evaluate queries the server of the trigger. The result counts only if what is
// measured has been scraped all the time of late: after a restart of
// Prometheus, a query for a rate has a result long before it has a true one.
func (p *Prometheus) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParsePrometheus(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknown(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	server, err := p.server(&trigger)
	if err != nil {
		return resultOf(err)
	}
	server.namespace = subject.ElastiService.Namespace
	if server.credentials, err = p.credentials.Get(ctx, server.namespace, &trigger.Credentials); err != nil {
		return unknown(v1alpha1.ReasonCredentialsUnavailable, "%v", err), nil
	}
	filter := cmp.Or(trigger.UptimeFilter, defaultUptimeFilter)
	up, err := p.do(ctx, server, p.uptimeQuery(filter), subject.MaxAge)
	if err != nil {
		return resultOf(err)
	}
	if up < 1 {
		return unknown(v1alpha1.ReasonNotScraped, "%s: up{%s} was not 1 all the time in the last %s: is uptimeFilter right, and is Prometheus up?", server.host, filter, p.options.UptimeWindow), nil
	}
	value, err := p.do(ctx, server, trigger.Query, subject.MaxAge)
	if err != nil {
		return resultOf(err)
	}
	return compare(value, trigger.Threshold), nil
}

// uptimeQuery is for 1 if at every moment of the window a scrape of what the
// filter selects had succeeded.
func (p *Prometheus) uptimeQuery(filter string) string {
	window := p.options.UptimeWindow
	return fmt.Sprintf("min_over_time((max(up{%s}) or vector(0))[%dms:%dms])", filter, window.Milliseconds(), (window / uptimeSamples).Milliseconds())
}

// prometheusServer is a server and how it is queried.
type prometheusServer struct {
	address string
	// host is what messages call it: an address may hold a password.
	host    string
	headers http.Header
	// authorizationFile is the file with the Authorization header, or empty.
	authorizationFile string
	// namespace is that of the credentials, own what the trigger says of them,
	// and credentials what came of that. Nil if there are none.
	namespace   string
	own         string
	credentials *credentials.Credentials
}

// server returns the server that a trigger queries. The configured credential
// goes to the configured server only, and only if the trigger does not say
// itself how to connect: whoever writes an ElastiService chooses the other
// servers, and whom a TLS configuration of its own trusts.
func (p *Prometheus) server(trigger *triggers.Prometheus) (*prometheusServer, error) {
	server := &prometheusServer{address: cmp.Or(trigger.ServerAddress, p.options.ServerAddress), headers: http.Header{}}
	for _, name := range slices.Sorted(maps.Keys(trigger.Headers)) {
		server.headers.Set(name, trigger.Headers[name])
	}
	if server.address == "" {
		return nil, failure(v1alpha1.ReasonNoServer, "the trigger has no serverAddress, and the elasti-apiserver was started without --prometheus-server-address: give one of them")
	}
	parsed, err := url.Parse(server.address)
	if err != nil {
		return nil, failure(v1alpha1.ReasonNoServer, "the serverAddress is not a URL")
	}
	server.host = parsed.Host
	if !trigger.Credentials.IsZero() {
		server.own = trigger.Credentials.String()
	} else if strings.TrimRight(server.address, "/") == strings.TrimRight(p.options.ServerAddress, "/") {
		server.authorizationFile = p.options.AuthorizationHeaderFile
	}
	return server, nil
}

// key tells servers apart, and the same server with other headers or
// credentials: its responses may depend on them.
func (s *prometheusServer) key() string {
	var key strings.Builder
	key.WriteString(strings.TrimRight(s.address, "/"))
	for _, name := range slices.Sorted(maps.Keys(s.headers)) {
		fmt.Fprintf(&key, "\n%s: %s", name, s.headers.Get(name))
	}
	if s.credentials != nil {
		fmt.Fprintf(&key, "\n%s %s %s", s.namespace, s.own, s.credentials.Version)
	}
	return key.String()
}

func (p *Prometheus) do(ctx context.Context, server *prometheusServer, query string, maxAge time.Duration) (float64, error) {
	return p.limiter.Do(ctx, queries.Query{Server: server.key(), Text: query}, maxAge, func(ctx context.Context) (float64, error) {
		return p.query(ctx, server, query)
	})
}

// query queries a server. Every error is a *queries.Error.
func (p *Prometheus) query(ctx context.Context, server *prometheusServer, query string) (float64, error) {
	headers := server.headers
	if server.authorizationFile != "" && headers.Get(authorizationHeader) == "" {
		authorization, err := os.ReadFile(server.authorizationFile)
		if err != nil {
			return 0, failure(v1alpha1.ReasonServerRefused, "the file that --prometheus-authorization-header-file names cannot be read")
		}
		headers = headers.Clone()
		headers.Set(authorizationHeader, strings.TrimSpace(string(authorization)))
	}
	transport := p.transport
	if own := server.credentials; own != nil {
		if own.Authorization != "" {
			headers = headers.Clone()
			headers.Set(authorizationHeader, own.Authorization)
		}
		transport = cmp.Or(own.Transport, transport)
	}
	client, err := api.NewClient(api.Config{
		Address: server.address,
		Client: &http.Client{
			Transport: &prometheusTransport{inner: transport, headers: headers},
			// Headers are for this server and no other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	})
	if err != nil {
		return 0, failure(v1alpha1.ReasonNoServer, "the serverAddress is not a URL")
	}
	value, warnings, err := prometheusv1.NewAPI(client).Query(ctx, query, time.Time{}, prometheusv1.WithTimeout(p.limiter.Timeout()))
	switch {
	case err != nil:
		return 0, explainQueryError(server, err)
	case len(warnings) > 0:
		// A server that queries others says so here when one of them is missing.
		return 0, failure(v1alpha1.ReasonDataIncomplete, "%s: the answer has warnings: %s", server.host, server.quote(strings.Join(warnings, "; ")))
	default:
		return single(server.host, value)
	}
}

// single returns the one number of a value.
func single(host string, value model.Value) (float64, error) {
	var number float64
	switch value := value.(type) {
	case *model.Scalar:
		number = float64(value.Value)
	case model.Vector:
		switch {
		case len(value) == 0:
			return 0, failure(v1alpha1.ReasonNoData, "%s: the query has no result: does what it selects exist?", host)
		case len(value) > 1:
			return 0, failure(v1alpha1.ReasonSeveralElements, "%s: the query has several results: wrap it into sum(…) or max(…)", host)
		case value[0].Histogram != nil:
			return 0, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is a histogram: take a number of it, such as with histogram_count(…)", host)
		}
		number = float64(value[0].Value)
	default:
		return 0, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is of the type %s: use a query for an instant vector with one element, or a scalar", host, value.Type())
	}
	if math.IsNaN(number) || math.IsInf(number, 0) {
		return 0, failure(v1alpha1.ReasonNotANumber, "%s: the query's result is %v: does it divide by zero?", host, number)
	}
	return number, nil
}

// explainQueryError returns the error for a query that failed. What the server
// says itself is shown only of queries that it rejects: anything could respond
// at an address that a user gave.
func explainQueryError(server *prometheusServer, err error) error {
	host := server.host
	var failed *prometheusv1.Error
	if errors.As(err, &failed) {
		switch failed.Type {
		case prometheusv1.ErrBadData, prometheusv1.ErrExec:
			return failure(v1alpha1.ReasonQueryRejected, "%s rejects the query: %s", host, server.quote(failed.Msg))
		case prometheusv1.ErrClient:
			return failure(v1alpha1.ReasonServerRefused, "%s refuses the request (%s): are the credentials, the headers and the path right?", host, server.quote(failed.Msg))
		case prometheusv1.ErrTimeout, prometheusv1.ErrCanceled:
			return failure(v1alpha1.ReasonServerFailed, "%s gave up on the query: make it cheaper", host)
		case prometheusv1.ErrBadResponse:
			return serverFault("%s does not answer as Prometheus does: is the serverAddress right?", host)
		default:
			return serverFault("%s failed (%s)", host, failed.Type)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return serverFault("%s did not answer in time", host)
	}
	var request *url.Error
	if errors.As(err, &request) {
		// Its own text holds the URL, which may hold a password.
		return serverFault("%s cannot be reached: %v", host, request.Err)
	}
	return failure(v1alpha1.ReasonNotANumber, "%s: the answer cannot be read: use a query for an instant vector with one element, or a scalar", host)
}

// quote returns what the server says, without the credentials that it repeats.
func (s *prometheusServer) quote(text string) string { return shorten(s.credentials.Redact(text)) }

func shorten(text string) string {
	if len(text) <= maxReasonBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxReasonBytes], "") + "…"
}

// prometheusTransport adds headers to requests and bounds responses.
type prometheusTransport struct {
	inner   http.RoundTripper
	headers http.Header
}

// RoundTrip sends a request.
func (t *prometheusTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	maps.Copy(request.Header, t.headers)
	// The package net/http takes this one from elsewhere.
	request.Host = cmp.Or(t.headers.Get("Host"), request.Host)
	response, err := t.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	response.Body = &boundedBody{Reader: io.LimitReader(response.Body, maxResponseBytes), Closer: response.Body}
	return response, nil
}

// boundedBody is a body that ends after a number of bytes.
type boundedBody struct {
	io.Reader
	io.Closer
}
