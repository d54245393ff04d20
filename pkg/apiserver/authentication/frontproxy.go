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

// Package authentication keeps what the server does to know its callers cheap.
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

// maxFrontProxies bounds how many certificates are remembered: each replica of
// kube-apiserver may have its own. The oldest go first.
const maxFrontProxies = 32

// frontProxies knows front proxies again whose certificates were verified.
type frontProxies struct {
	next   authenticator.Request
	config *authenticatorfactory.RequestHeaderConfig
	// believe takes the caller from the headers of a request.
	believe authenticator.Request
	// verified holds verifications by certificate, as it is encoded.
	verified *lru.Cache
	clock    clock.PassiveClock
}

// verification is that a certificate was signed by one of the authorities.
type verification struct {
	// authorities is the bundle that was verified with.
	authorities []byte
	// ends is when the first certificate of the chain does.
	ends time.Time
}

// RememberFrontProxies returns an authenticator that does the same as next, but
// verifies the certificate of a front proxy, such as kube-apiserver's
// aggregator, once instead of with each request. The outcome depends on nothing
// else than the certificate, the authorities and the time: one that is
// remembered counts until the authorities change or a certificate of the chain
// expires. Whether the name of the proxy is one that is allowed is looked up
// with each request. next, which is asked for everything else, has to take front
// proxies by config too.
//
// Safe for concurrent use if next is.
func RememberFrontProxies(next authenticator.Request, config *authenticatorfactory.RequestHeaderConfig, clock clock.PassiveClock) authenticator.Request {
	headers := headerrequest.NewDynamic(config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders, config.ExtraHeaderPrefixes)
	return &frontProxies{
		next:     next,
		config:   config,
		believe:  group.NewAuthenticatedGroupAdder(headers),
		verified: lru.New(maxFrontProxies),
		clock:    clock,
	}
}

// AuthenticateRequest implements authenticator.Request.
func (p *frontProxies) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	// A chain with intermediates is verified anew: what is remembered is about
	// one certificate.
	if request.TLS != nil && len(request.TLS.PeerCertificates) == 1 && p.isFrontProxy(request.TLS.PeerCertificates[0]) {
		if response, ok, err := p.believe.AuthenticateRequest(request); ok && err == nil {
			return response, true, nil
		}
	}
	return p.next.AuthenticateRequest(request)
}

func (p *frontProxies) isFrontProxy(certificate *x509.Certificate) bool {
	names := p.config.AllowedClientNames.Value()
	if len(names) > 0 && !slices.Contains(names, certificate.Subject.CommonName) {
		return false
	}
	authorities := p.config.CAContentProvider.CurrentCABundleContent()
	key := string(certificate.Raw)
	if found, ok := p.verified.Get(key); ok {
		known := found.(verification)
		if bytes.Equal(known.authorities, authorities) && p.clock.Now().Before(known.ends) {
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
		// The one who is asked next says why.
		return false
	}
	if bytes.Equal(authorities, p.config.CAContentProvider.CurrentCABundleContent()) {
		p.verified.Add(key, verification{authorities: authorities, ends: endOf(chains)})
	}
	return true
}

// endOf returns until when one of the chains holds.
func endOf(chains [][]*x509.Certificate) time.Time {
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
