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
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"reflect"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/util/cert"
	testingclock "k8s.io/utils/clock/testing"
)

const validity = time.Hour

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key := newKey(t)
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "front-proxy-ca"}, key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate, key}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue returns a certificate for clients.
func (a authority) issue(t *testing.T, commonName string, ends time.Time) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Now().Add(-validity),
		NotAfter:     ends,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.certificate, newKey(t).Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// bundle is a set of authorities that can be replaced.
type bundle struct {
	dynamiccertificates.CAContentProvider
	t *testing.T
	// verifications counts how often something was to be verified.
	verifications int
}

func newBundle(t *testing.T, of authority) *bundle {
	b := &bundle{t: t}
	b.replace(of)
	return b
}

func (b *bundle) replace(with authority) {
	b.t.Helper()
	encoded, err := cert.EncodeCertificates(with.certificate)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.CAContentProvider, err = dynamiccertificates.NewStaticCAContent("front-proxy", encoded); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) VerifyOptions() (x509.VerifyOptions, bool) {
	b.verifications++
	return b.CAContentProvider.VerifyOptions()
}

// asked counts how often an authenticator is asked.
type asked struct {
	authenticator.Request
	times int
}

func (a *asked) AuthenticateRequest(request *http.Request) (*authenticator.Response, bool, error) {
	a.times++
	return a.Request.AuthenticateRequest(request)
}

// newAuthenticators returns the authenticator of the generic server, and the
// one that remembers in front of it.
func newAuthenticators(t *testing.T, authorities *bundle, clock *testingclock.FakePassiveClock) (next *asked, remembering authenticator.Request) {
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
	next = &asked{Request: generic}
	return next, RememberFrontProxies(next, config, clock)
}

func newRequest(certificates ...*x509.Certificate) *http.Request {
	request := &http.Request{Header: http.Header{}}
	request.Header.Set("X-Remote-User", "kim")
	request.Header.Set("X-Remote-Uid", "7")
	request.Header["X-Remote-Group"] = []string{"shop", "till"}
	request.Header.Set("X-Remote-Extra-Scopes", "read")
	if certificates != nil {
		request.TLS = &tls.ConnectionState{PeerCertificates: certificates}
	}
	return request
}

func TestAFrontProxyIsVerifiedOnceAndBelievedAsBefore(t *testing.T) {
	signer := newAuthority(t)
	authorities := newBundle(t, signer)
	next, remembering := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	certificate := signer.issue(t, "aggregator", time.Now().Add(validity))

	plain := newRequest(certificate)
	want, ok, err := next.AuthenticateRequest(plain)
	if !ok || err != nil {
		t.Fatalf("the generic server does not know the front proxy: %v", err)
	}
	next.times, authorities.verifications = 0, 0
	for range 3 {
		request := newRequest(certificate)
		got, ok, err := remembering.AuthenticateRequest(request)
		if !ok || err != nil {
			t.Fatalf("the front proxy is not known: %v", err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the caller is %v, want %v", got.User, want.User)
		}
		if !reflect.DeepEqual(request.Header, plain.Header) {
			t.Errorf("the headers that are left are %v, want %v", request.Header, plain.Header)
		}
	}
	if authorities.verifications != 1 || next.times != 0 {
		t.Errorf("it was verified %d times, and the other authenticator asked %d times", authorities.verifications, next.times)
	}
}

func TestOthersAreLeftToTheGenericServer(t *testing.T) {
	signer, other := newAuthority(t), newAuthority(t)
	later := time.Now().Add(validity)
	known := signer.issue(t, "aggregator", later)
	withoutHeaders := newRequest(known)
	withoutHeaders.Header = http.Header{}
	for what, request := range map[string]*http.Request{
		"no TLS":                newRequest(),
		"no certificate":        newRequest([]*x509.Certificate{}...),
		"another authority":     newRequest(other.issue(t, "aggregator", later)),
		"a name not allowed":    newRequest(signer.issue(t, "till", later)),
		"with an intermediate":  newRequest(known, other.certificate),
		"nobody in the headers": withoutHeaders,
	} {
		t.Run(what, func(t *testing.T) {
			next, remembering := newAuthenticators(t, newBundle(t, signer), testingclock.NewFakePassiveClock(time.Now()))
			// It does not matter that another request was believed before.
			if _, ok, err := remembering.AuthenticateRequest(newRequest(known)); !ok || err != nil {
				t.Fatalf("the front proxy is not known: %v", err)
			}
			same := request.Clone(t.Context())
			want, wantOK, wantErr := next.Request.AuthenticateRequest(same)
			got, ok, err := remembering.AuthenticateRequest(request)
			if next.times != 1 {
				t.Errorf("the generic server was asked %d times", next.times)
			}
			if ok != wantOK || (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
				t.Errorf("the answer is %v, %v, %v, want %v, %v, %v", got, ok, err, want, wantOK, wantErr)
			}
		})
	}
}

func TestAFrontProxyIsVerifiedAgainWhenTheAuthoritiesChange(t *testing.T) {
	signer := newAuthority(t)
	authorities := newBundle(t, signer)
	next, remembering := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	certificate := signer.issue(t, "aggregator", time.Now().Add(validity))
	believed := func() bool {
		_, ok, err := remembering.AuthenticateRequest(newRequest(certificate))
		return ok && err == nil
	}
	if !believed() {
		t.Fatal("the front proxy is not known")
	}
	authorities.replace(newAuthority(t))
	if believed() {
		t.Error("a front proxy of an authority that was replaced is believed")
	}
	authorities.replace(signer)
	if !believed() {
		t.Error("a front proxy of an authority that is back is not believed")
	}
	if next.times != 1 {
		t.Errorf("the generic server was asked %d times", next.times)
	}
}

func TestAFrontProxyIsNotKnownForLongerThanItsCertificateHolds(t *testing.T) {
	signer := newAuthority(t)
	clock := testingclock.NewFakePassiveClock(time.Now())
	next, remembering := newAuthenticators(t, newBundle(t, signer), clock)
	certificate := signer.issue(t, "aggregator", time.Now().Add(validity))
	for _, test := range []struct {
		after time.Duration
		asked int
	}{{0, 0}, {validity - time.Minute, 0}, {validity + time.Minute, 1}} {
		clock.SetTime(time.Now().Add(test.after))
		// The generic server has the real clock: it still believes.
		if _, ok, err := remembering.AuthenticateRequest(newRequest(certificate)); !ok || err != nil {
			t.Fatalf("the front proxy is not known: %v", err)
		}
		if next.times != test.asked {
			t.Errorf("after %s the generic server was asked %d times, want %d", test.after, next.times, test.asked)
		}
	}
}

func TestTheEndOfAChainIsThatOfItsFirstCertificateToEnd(t *testing.T) {
	now := time.Now()
	ends := func(after time.Duration) *x509.Certificate { return &x509.Certificate{NotAfter: now.Add(after)} }
	for _, test := range []struct {
		chains [][]*x509.Certificate
		want   time.Duration
	}{
		{[][]*x509.Certificate{{ends(1), ends(2)}}, 1},
		{[][]*x509.Certificate{{ends(2), ends(1)}}, 1},
		{[][]*x509.Certificate{{ends(5), ends(1)}, {ends(5), ends(3)}}, 3},
	} {
		if got := endOf(test.chains); !got.Equal(now.Add(test.want)) {
			t.Errorf("the end is %s, want %s", got.Sub(now), test.want)
		}
	}
}

func TestRememberedCertificatesAreBounded(t *testing.T) {
	signer := newAuthority(t)
	authorities := newBundle(t, signer)
	_, remembering := newAuthenticators(t, authorities, testingclock.NewFakePassiveClock(time.Now()))
	for range 2 * maxFrontProxies {
		if _, ok, err := remembering.AuthenticateRequest(newRequest(signer.issue(t, "aggregator", time.Now().Add(validity)))); !ok || err != nil {
			t.Fatalf("the front proxy is not known: %v", err)
		}
	}
	if held := remembering.(*frontProxies).verified.Len(); held != maxFrontProxies {
		t.Errorf("%d certificates are remembered, want %d", held, maxFrontProxies)
	}
}
