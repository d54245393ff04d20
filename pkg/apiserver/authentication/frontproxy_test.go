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

package authentication

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"reflect"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

const validity = time.Hour

func newAuthority() *certificates.Authority {
	return certificates.NewAuthority("front-proxy-ca", certificates.ECDSA)
}

// issue returns a certificate for clients.
func issue(authority *certificates.Authority, commonName string, ends time.Time) *x509.Certificate {
	return authority.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: commonName}, NotAfter: ends, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}).Certificate
}

// bundle is a set of authorities that can be replaced.
type bundle struct {
	dynamiccertificates.CAContentProvider
	t *testing.T
	// verifications counts the verifications.
	verifications int
}

func newBundle(t *testing.T, of *certificates.Authority) *bundle {
	t.Helper()
	b := &bundle{t: t}
	b.replace(of)
	return b
}

func (b *bundle) replace(with *certificates.Authority) {
	b.t.Helper()
	var err error
	if b.CAContentProvider, err = dynamiccertificates.NewStaticCAContent("front-proxy", with.PEM()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) VerifyOptions() (x509.VerifyOptions, bool) {
	b.verifications++
	return b.CAContentProvider.VerifyOptions()
}

// countingDelegate counts the requests to an authenticator.
type countingDelegate struct {
	authenticator.Request
	calls int
}

func (d *countingDelegate) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	d.calls++
	return d.Request.AuthenticateRequest(request)
}

// newAuthenticators returns the authenticator of the generic server, and the
// caching one that delegates to it.
func newAuthenticators(t *testing.T, authorities *bundle, clock *testingclock.FakePassiveClock) (delegate *countingDelegate, caching authenticator.Request) {
	t.Helper()
	config := &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
		UIDHeaders:          headerrequest.StaticStringSlice{"X-Remote-Uid"},
		GroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
		CAContentProvider:   authorities,
		AllowedClientNames:  headerrequest.StaticStringSlice{"aggregator"},
	}
	generic, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{RequestHeaderConfig: config}.New()
	if err != nil {
		t.Fatal(err)
	}
	delegate = &countingDelegate{Request: generic}
	return delegate, CacheFrontProxies(delegate, config, clock)
}

func newRequest(chain ...*x509.Certificate) *http.Request {
	request := &http.Request{Header: http.Header{}}
	request.Header.Set("X-Remote-User", "kim")
	request.Header.Set("X-Remote-Uid", "7")
	request.Header["X-Remote-Group"] = []string{"shop", "till"}
	request.Header.Set("X-Remote-Extra-Scopes", "read")
	if chain != nil {
		request.TLS = &tls.ConnectionState{PeerCertificates: chain}
	}
	return request
}

func TestACachedFrontProxyIsAuthenticatedAsBefore(t *testing.T) {
	signer := newAuthority()
	authorities := newBundle(t, signer)
	delegate, caching := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	certificate := issue(signer, "aggregator", time.Now().Add(validity))

	plain := newRequest(certificate)
	want, ok, err := delegate.AuthenticateRequest(plain)
	if !ok || err != nil {
		t.Fatalf("the generic server rejects the front proxy: %v", err)
	}
	delegate.calls, authorities.verifications = 0, 0
	for range 3 {
		request := newRequest(certificate)
		got, ok, err := caching.AuthenticateRequest(request)
		if !ok || err != nil {
			t.Fatalf("the front proxy is rejected: %v", err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the caller is %v, want %v", got.User, want.User)
		}
		if !reflect.DeepEqual(request.Header, plain.Header) {
			t.Errorf("the headers that are left are %v, want %v", request.Header, plain.Header)
		}
	}
	if authorities.verifications != 1 || delegate.calls != 0 {
		t.Errorf("it was verified %d times, and the delegate called %d times", authorities.verifications, delegate.calls)
	}
}

func TestOtherRequestsAreDelegated(t *testing.T) {
	signer, other := newAuthority(), newAuthority()
	later := time.Now().Add(validity)
	allowed := issue(signer, "aggregator", later)
	withoutHeaders := newRequest(allowed)
	withoutHeaders.Header = http.Header{}
	for what, request := range map[string]*http.Request{
		"no TLS":                 newRequest(),
		"no certificate":         newRequest([]*x509.Certificate{}...),
		"another authority":      newRequest(issue(other, "aggregator", later)),
		"a name not allowed":     newRequest(issue(signer, "till", later)),
		"with an intermediate":   newRequest(allowed, other.Certificate),
		"no user in the headers": withoutHeaders,
	} {
		t.Run(what, func(t *testing.T) {
			delegate, caching := newAuthenticators(t, newBundle(t, signer), testingclock.NewFakePassiveClock(time.Now()))
			// It does not matter that the front proxy is cached.
			if _, ok, err := caching.AuthenticateRequest(newRequest(allowed)); !ok || err != nil {
				t.Fatalf("the front proxy is rejected: %v", err)
			}
			same := request.Clone(t.Context())
			want, wantOK, wantErr := delegate.Request.AuthenticateRequest(same)
			got, ok, err := caching.AuthenticateRequest(request)
			if delegate.calls != 1 {
				t.Errorf("the generic server was called %d times", delegate.calls)
			}
			if ok != wantOK || (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
				t.Errorf("the result is %v, %v, %v, want %v, %v, %v", got, ok, err, want, wantOK, wantErr)
			}
		})
	}
}

func TestAFrontProxyIsVerifiedAgainWhenTheAuthoritiesChange(t *testing.T) {
	signer := newAuthority()
	authorities := newBundle(t, signer)
	delegate, caching := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	certificate := issue(signer, "aggregator", time.Now().Add(validity))
	accepted := func() bool {
		_, ok, err := caching.AuthenticateRequest(newRequest(certificate))
		return ok && err == nil
	}
	if !accepted() {
		t.Fatal("the front proxy is rejected")
	}
	authorities.replace(newAuthority())
	if accepted() {
		t.Error("a front proxy of an authority that was replaced is accepted")
	}
	authorities.replace(signer)
	if !accepted() {
		t.Error("a front proxy of an authority that is back is rejected")
	}
	if delegate.calls != 1 {
		t.Errorf("the generic server was called %d times", delegate.calls)
	}
}

func TestAFrontProxyIsNotCachedAfterItsCertificateExpires(t *testing.T) {
	signer := newAuthority()
	clock := testingclock.NewFakePassiveClock(time.Now())
	delegate, caching := newAuthenticators(t, newBundle(t, signer), clock)
	certificate := issue(signer, "aggregator", time.Now().Add(validity))
	for _, test := range []struct {
		after time.Duration
		calls int
	}{{0, 0}, {validity - time.Minute, 0}, {validity + time.Minute, 1}} {
		clock.SetTime(time.Now().Add(test.after))
		// The generic server has the real clock: it still accepts.
		if _, ok, err := caching.AuthenticateRequest(newRequest(certificate)); !ok || err != nil {
			t.Fatalf("the front proxy is rejected: %v", err)
		}
		if delegate.calls != test.calls {
			t.Errorf("after %s the generic server was called %d times, want %d", test.after, delegate.calls, test.calls)
		}
	}
}

func TestAChainExpiresWithItsFirstCertificate(t *testing.T) {
	now := time.Now()
	expires := func(after time.Duration) *x509.Certificate { return &x509.Certificate{NotAfter: now.Add(after)} }
	for _, test := range []struct {
		chains [][]*x509.Certificate
		want   time.Duration
	}{
		{[][]*x509.Certificate{{expires(1), expires(2)}}, 1},
		{[][]*x509.Certificate{{expires(2), expires(1)}}, 1},
		{[][]*x509.Certificate{{expires(5), expires(1)}, {expires(5), expires(3)}}, 3},
	} {
		if got := expiryOf(test.chains); !got.Equal(now.Add(test.want)) {
			t.Errorf("the chains expire after %s, want %s", got.Sub(now), test.want)
		}
	}
}

func TestCachedCertificatesAreBounded(t *testing.T) {
	signer := newAuthority()
	authorities := newBundle(t, signer)
	_, caching := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	for range 2 * maxFrontProxies {
		if _, ok, err := caching.AuthenticateRequest(newRequest(issue(signer, "aggregator", time.Now().Add(validity)))); !ok || err != nil {
			t.Fatalf("the front proxy is rejected: %v", err)
		}
	}
	if held := caching.(*frontProxies).verified.Len(); held != maxFrontProxies {
		t.Errorf("%d certificates are cached, want %d", held, maxFrontProxies)
	}
}
