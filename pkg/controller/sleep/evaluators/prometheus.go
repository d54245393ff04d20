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
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/credentials"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/egress"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/promql"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/queries"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// DefaultUptimeWindow holds several scrapes at the usual intervals.
const DefaultUptimeWindow = time.Minute

// AllNamespaces stands for every namespace in AuthorizedNamespaces.
const AllNamespaces = "*"

const (
	// defaultUptimeFilter selects the up metric of Prometheus itself.
	defaultUptimeFilter = `container="prometheus"`
	// uptimeSamples is how many times the uptime is sampled in its window.
	uptimeSamples = 12
	// installationServer is the name of the installation's server in messages.
	installationServer = "the installation's Prometheus server"
)

// PrometheusOptions configure a Prometheus.
type PrometheusOptions struct {
	// ServerAddress is the URL of the installation's server, which triggers
	// without a serverAddress query. Empty means that they cannot be evaluated.
	ServerAddress string
	// AuthorizationHeaderFile holds the value of the Authorization header for
	// requests to ServerAddress, and to no other server. It is read for each
	// request. Empty means no header.
	AuthorizationHeaderFile string
	// NamespaceLabel is the label of the installation's series that holds the
	// namespace. Queries of the installation's server are restricted to the
	// namespace of the ElastiService by it. Empty means that they are not.
	NamespaceLabel string
	// AuthorizedNamespaces are those whose triggers may query the installation's
	// server, or AllNamespaces. Without any, all may if NamespaceLabel is given, or
	// if neither a credential nor Servers protects it.
	AuthorizedNamespaces []string
	// Servers connects to the servers that triggers name. Defaults to a guard
	// that allows every address that is not forbidden.
	Servers *egress.Guard
	// UptimeWindow is for how long, up to now, what is measured must have been
	// scraped. It should be longer than the time between two evaluations, so that
	// none of them misses an outage. Defaults to DefaultUptimeWindow.
	UptimeWindow time.Duration
	// Keys reads the credentials of triggers. Without it, triggers with credentials
	// cannot be evaluated.
	Keys credentials.KeyReader
	// Limiter sends the queries. Defaults to one of its own.
	Limiter *queries.Limiter
	// Clock is the time. Defaults to the real clock.
	Clock clock.PassiveClock
}

// Prometheus evaluates triggers of the type prometheus. It is safe for
// concurrent use.
type Prometheus struct {
	options PrometheusOptions
	// installation connects to the installation's server, by the configuration of
	// the administrator, and transport to those that triggers name.
	installation *http.Transport
	transport    *http.Transport
	// credentials are those of triggers.
	credentials *credentials.Store
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
	if options.Limiter == nil {
		options.Limiter = queries.NewLimiter(queries.Options{Clock: options.Clock})
	}
	if options.Servers == nil {
		options.Servers = egress.NewGuard(egress.Options{})
	}
	installation := newTransport()
	installation.Proxy = http.ProxyFromEnvironment
	transport := newTransport()
	transport.DialContext = options.Servers.DialContext
	return &Prometheus{
		options:      options,
		installation: installation,
		transport:    transport,
		credentials:  credentials.NewStore(options.Keys, options.Clock, transport),
	}
}

// CloseIdleConnections closes the connections to servers that are not in use.
func (p *Prometheus) CloseIdleConnections() {
	p.installation.CloseIdleConnections()
	p.transport.CloseIdleConnections()
	p.credentials.Clear()
}

// Evaluate queries the server of the trigger. The result counts only if what is
// measured was scraped during the whole uptime window: after a restart of Prometheus,
// a query for a rate has a result long before it has a true one.
func (p *Prometheus) Evaluate(ctx context.Context, subject Subject) (Result, error) {
	trigger, errs := triggers.ParsePrometheus(subject.Trigger.Metadata, nil)
	if len(errs) > 0 {
		return unknown(v1alpha1.ReasonMetadataInvalid, "%v", errs.ToAggregate()), nil
	}
	server, err := p.server(&trigger, subject.ElastiService.Namespace)
	if err != nil {
		return resultOf(err)
	}
	if server.credentials, err = p.credentials.Get(ctx, server.namespace, &trigger.Credentials); err != nil {
		return unknown(v1alpha1.ReasonCredentialsUnavailable, "%v", err), nil
	}
	uptime, query, err := p.queriesOf(server, &trigger)
	if err != nil {
		return resultOf(err)
	}
	up, err := p.do(ctx, server, uptime, subject.MaxAge)
	if err != nil {
		return resultOf(err)
	}
	if up.Value < 1 {
		filter := cmp.Or(trigger.UptimeFilter, defaultUptimeFilter)
		return unknown(v1alpha1.ReasonNotScraped, "%s: up{%s} was not 1 all the time in the last %s: is uptimeFilter right, and is Prometheus up?", server.name, filter, p.options.UptimeWindow), nil
	}
	got, err := p.do(ctx, server, query, subject.MaxAge)
	if err != nil {
		return resultOf(err)
	}
	return compare(got, trigger.Threshold), nil
}

// queriesOf returns the query for the uptime and that of the trigger, as they are
// sent. Without a filter of the trigger, the default query for the uptime is about
// Prometheus itself, which is in a namespace of its own, and is not restricted.
func (p *Prometheus) queriesOf(server *prometheusServer, trigger *triggers.Prometheus) (uptime, query string, err error) {
	uptime, query = p.uptimeQuery(cmp.Or(trigger.UptimeFilter, defaultUptimeFilter)), trigger.Query
	label := p.options.NamespaceLabel
	if !server.installation || label == "" {
		return uptime, query, nil
	}
	if query, err = promql.Enforce(query, label, server.namespace); err != nil {
		return "", "", failure(v1alpha1.ReasonQueryRejected, "query, restricted to %s=%q: %s", label, server.namespace, shorten(err.Error()))
	}
	if trigger.UptimeFilter == "" {
		return uptime, query, nil
	}
	if uptime, err = promql.Enforce(uptime, label, server.namespace); err != nil {
		return "", "", failure(v1alpha1.ReasonQueryRejected, "uptimeFilter, restricted to %s=%q: %s", label, server.namespace, shorten(err.Error()))
	}
	return uptime, query, nil
}

// uptimeQuery returns a query that is 1 if what the filter selects was scraped with
// success during the whole window.
func (p *Prometheus) uptimeQuery(filter string) string {
	window := p.options.UptimeWindow
	return fmt.Sprintf("min_over_time((max(up{%s}) or vector(0))[%dms:%dms])", filter, window.Milliseconds(), (window / uptimeSamples).Milliseconds())
}

// prometheusServer is a server and how it is queried.
type prometheusServer struct {
	address *url.URL
	// name is its name in messages: an address may contain a password.
	name    string
	headers http.Header
	// installation is true for the installation's server, queried as the
	// installation does.
	installation bool
	// namespace is that of the ElastiService, own the references of the trigger to
	// credentials, and credentials what was read of these. Nil if there are none.
	namespace   string
	own         string
	credentials *credentials.Credentials
}

// server returns the server that a trigger queries. The installation's server is
// queried with the installation's credential only if the trigger itself has no
// configuration of the connection: the user who writes an ElastiService chooses the
// other servers, and which certificates a TLS configuration trusts.
func (p *Prometheus) server(trigger *triggers.Prometheus, namespace string) (*prometheusServer, error) {
	address := cmp.Or(trigger.ServerAddress, p.options.ServerAddress)
	if address == "" {
		return nil, failure(v1alpha1.ReasonNoServer, "the trigger has no serverAddress, and the elasti-apiserver was started without --prometheus-server-address: give one of them")
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, failure(v1alpha1.ReasonNoServer, "the serverAddress is not a URL")
	}
	server := &prometheusServer{address: parsed, name: parsed.Host, headers: http.Header{}, namespace: namespace}
	for _, name := range slices.Sorted(maps.Keys(trigger.Headers)) {
		server.headers.Set(name, trigger.Headers[name])
	}
	if !trigger.Credentials.IsZero() {
		server.own = trigger.Credentials.String()
	}
	// Headers may choose a tenant, or another server behind the same address. Where
	// queries are restricted, that is not allowed with the installation's credential.
	ownConnection := server.own != "" || p.options.NamespaceLabel != "" && len(trigger.Headers) > 0
	if strings.TrimRight(address, "/") == strings.TrimRight(p.options.ServerAddress, "/") && !ownConnection {
		server.installation, server.name = true, installationServer
		return server, p.mayQueryInstallation(namespace)
	}
	return server, p.mayName(server, trigger)
}

// mayQueryInstallation fails when the triggers of a namespace may not query the
// installation's server.
func (p *Prometheus) mayQueryInstallation(namespace string) error {
	authorized := p.options.AuthorizedNamespaces
	switch {
	case slices.Contains(authorized, namespace) || slices.Contains(authorized, AllNamespaces):
		return nil
	case len(authorized) == 0 && p.options.NamespaceLabel != "":
		return nil
	case len(authorized) == 0 && p.options.AuthorizationHeaderFile == "" && !p.options.Servers.Restricted():
		// The server is not protected.
		return nil
	default:
		return failure(v1alpha1.ReasonServerNotAllowed,
			"triggers of the namespace %q may not query %s: give a serverAddress and credentials of your own, or have the administrator set --prometheus-namespace-label, or add your namespace to --prometheus-authorization-namespaces", namespace, installationServer)
	}
}

// mayName fails when the trigger queries the server under another name that the
// trigger may not query.
func (p *Prometheus) mayName(server *prometheusServer, trigger *triggers.Prometheus) error {
	host, port := server.address.Hostname(), portOf(server.address)
	for _, alias := range []string{hostOf(server.headers.Get("Host")), trigger.Credentials.ServerName} {
		if alias != "" && alias != host && !p.options.Servers.AllowsAlias(host, alias, port) {
			return notAllowed(server.name)
		}
	}
	return nil
}

// hostOf returns the host of the header Host.
func hostOf(header string) string {
	parsed := url.URL{Host: header}
	return parsed.Hostname()
}

func portOf(address *url.URL) uint16 {
	if port, err := strconv.ParseUint(address.Port(), 10, 16); err == nil {
		return uint16(port)
	}
	if address.Scheme == "https" {
		return 443
	}
	return 80
}

// connection identifies a server together with the headers and credentials, on which
// its responses may depend.
func (s *prometheusServer) connection() string {
	var key strings.Builder
	fmt.Fprintf(&key, "%t %s", s.installation, strings.TrimRight(s.address.String(), "/"))
	for _, name := range slices.Sorted(maps.Keys(s.headers)) {
		fmt.Fprintf(&key, "\n%s: %s", name, s.headers.Get(name))
	}
	if s.credentials != nil {
		fmt.Fprintf(&key, "\n%s %s", s.own, s.credentials.Version)
	}
	return key.String()
}

// limited returns the host and port by which the queries in flight of a server are
// counted, whatever the spelling of its address is.
func (s *prometheusServer) limited() string {
	return fmt.Sprintf("%s:%d", strings.ToLower(strings.TrimSuffix(s.address.Hostname(), ".")), portOf(s.address))
}

func (p *Prometheus) do(ctx context.Context, server *prometheusServer, query string, maxAge time.Duration) (queries.Result, error) {
	identity := queries.Query{Namespace: server.namespace, Server: server.limited(), Connection: server.connection(), Text: query}
	return p.options.Limiter.Do(ctx, identity, maxAge, func(ctx context.Context) (queries.Result, error) {
		return p.query(ctx, server, query)
	})
}

// query queries a server. Every error is a *queries.Error.
func (p *Prometheus) query(ctx context.Context, server *prometheusServer, query string) (queries.Result, error) {
	headers, transport := server.headers.Clone(), p.transport
	switch own := server.credentials; {
	case server.installation:
		transport = p.installation
		if err := p.authorize(headers); err != nil {
			return queries.Result{}, err
		}
	case own != nil:
		if own.Authorization != "" {
			headers.Set(authorizationHeader, own.Authorization)
		}
		transport = cmp.Or(own.Transport, transport)
	}
	request := prometheusRequest{name: server.name, address: server.address, headers: headers, transport: transport, timeout: p.options.Limiter.Timeout()}
	return request.send(ctx, query)
}

// authorize adds the installation's credential, unless there is another one.
func (p *Prometheus) authorize(headers http.Header) error {
	if p.options.AuthorizationHeaderFile == "" || headers.Get(authorizationHeader) != "" {
		return nil
	}
	authorization, err := os.ReadFile(p.options.AuthorizationHeaderFile)
	if err != nil {
		return failure(v1alpha1.ReasonServerRefused, "the file that --prometheus-authorization-header-file names cannot be read")
	}
	headers.Set(authorizationHeader, strings.TrimSpace(string(authorization)))
	return nil
}
