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

// Package authentication makes the authentication of callers cheap: the certificate of a
// front proxy is verified once, and not with each request. It identifies no caller
// itself, as the authenticator that it wraps does. Begin with CacheFrontProxies.
package authentication

import (
	"bytes"
	"crypto/x509"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// maxFrontProxies bounds how many certificates are cached: each replica of
// kube-apiserver may have its own. The least recently used are evicted.
const maxFrontProxies = 32

// frontProxies authenticates requests of front proxies, and caches which of their
// certificates were verified. It delegates all other requests.
type frontProxies struct {
	delegate authenticator.Request
	config   *authenticatorfactory.RequestHeaderConfig
	// headers reads the caller from the headers of a request.
	headers authenticator.Request
	// verified holds verifications by the encoded certificate.
	verified *lru.Cache
	clock    clock.PassiveClock
}

// verification says that a certificate was signed by one of the authorities.
type verification struct {
	// authorities is the bundle that was verified with.
	authorities []byte
	// expires is when the first certificate of the chain expires.
	expires time.Time
}

// CacheFrontProxies returns an authenticator that does the same as delegate, but
// verifies the certificate of a front proxy, such as kube-apiserver's
// aggregator, once instead of with each request. The result depends on the
// certificate, the authorities and the time only: it is cached until the
// authorities change or a certificate of the chain expires. Whether the name of
// the proxy is allowed is checked with each request. Everything else goes to
// delegate, which must authenticate front proxies by config too.
//
// It is safe for concurrent use if delegate is.
func CacheFrontProxies(delegate authenticator.Request, config *authenticatorfactory.RequestHeaderConfig, clock clock.PassiveClock) authenticator.Request {
	fromHeaders := headerrequest.NewDynamic(config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders, config.ExtraHeaderPrefixes)
	return &frontProxies{
		delegate: delegate,
		config:   config,
		headers:  group.NewAuthenticatedGroupAdder(fromHeaders),
		verified: lru.New(maxFrontProxies),
		clock:    clock,
	}
}

// AuthenticateRequest implements authenticator.Request.
func (p *frontProxies) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	// A chain with intermediates is verified each time: the cache is for single
	// certificates.
	if request.TLS != nil && len(request.TLS.PeerCertificates) == 1 && p.isFrontProxy(request.TLS.PeerCertificates[0]) {
		if response, ok, err := p.headers.AuthenticateRequest(request); ok && err == nil {
			return response, true, nil
		}
	}
	return p.delegate.AuthenticateRequest(request)
}

func (p *frontProxies) isFrontProxy(certificate *x509.Certificate) bool {
	names := p.config.AllowedClientNames.Value()
	if len(names) > 0 && !slices.Contains(names, certificate.Subject.CommonName) {
		return false
	}
	authorities := p.config.CAContentProvider.CurrentCABundleContent()
	key := string(certificate.Raw)
	if found, ok := p.verified.Get(key); ok {
		cached := found.(verification)
		if bytes.Equal(cached.authorities, authorities) && p.clock.Now().Before(cached.expires) {
			return true
		}
	}
	options, ok := p.config.CAContentProvider.VerifyOptions()
	if !ok {
		return false
	}
	options.CurrentTime = p.clock.Now()
	chains, err := certificate.Verify(options)
	if err != nil {
		// The delegate returns the reason.
		return false
	}
	if bytes.Equal(authorities, p.config.CAContentProvider.CurrentCABundleContent()) {
		p.verified.Add(key, verification{authorities: authorities, expires: expiryOf(chains)})
	}
	return true
}

// expiryOf returns until when at least one of the chains is valid.
func expiryOf(chains [][]*x509.Certificate) time.Time {
	var last time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, certificate := range chain[1:] {
			if certificate.NotAfter.Before(end) {
				end = certificate.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}
