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
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/credentials"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

// fakeKeys holds the values of keys by "namespace reference".
type fakeKeys struct {
	mu      sync.Mutex
	values  map[string]string
	reads   int
	failing error
}

func (f *fakeKeys) set(namespace, name, key, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.values == nil {
		f.values = map[string]string{}
	}
	f.values[namespace+" "+triggers.KeyReference{Kind: triggers.KindSecret, Name: name, Key: key}.String()] = value
}

func (f *fakeKeys) ReadKey(_ context.Context, namespace string, reference triggers.KeyReference) ([]byte, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.failing != nil {
		return nil, "", f.failing
	}
	value, ok := f.values[namespace+" "+reference.String()]
	if !ok {
		return nil, "", &credentials.MissingKeyError{Reference: reference}
	}
	return []byte(value), value, nil
}

func inNamespace(namespace, metadata string) Subject {
	subject := subjectOf(triggers.TypePrometheus, metadata)
	subject.ElastiService.Namespace = namespace
	return subject
}

func (f *fakePrometheus) lastHeaders() http.Header {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.headers
}

func evaluate(t *testing.T, prometheus *Prometheus, subject Subject) Result {
	t.Helper()
	result, err := prometheus.Evaluate(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestCredentialsOfATrigger(t *testing.T) {
	for name, test := range map[string]struct{ member, want string }{
		"bearer": {`"authorization":{"credentials":{"name":"monitoring","key":"token"}}`, "Bearer s3cr3t"},
		"scheme": {`"authorization":{"type":"Token","credentials":{"name":"monitoring","key":"token"}}`, "Token s3cr3t"},
		"basic":  {`"basicAuth":{"username":{"name":"monitoring","key":"user"},"password":{"name":"monitoring","key":"token"}}`, "Basic c2hvcDpzM2NyM3Q="},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakePrometheus(t)
			server.respond(http.StatusOK, vector("0"))
			keys := &fakeKeys{}
			keys.set("shop", "monitoring", "token", "s3cr3t\n")
			keys.set("shop", "monitoring", "user", "shop")
			prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: keys})
			result := evaluate(t, prometheus, inNamespace("shop", `{"query":"requests","threshold":5,`+test.member+`}`))
			if result.State != Idle {
				t.Errorf("got %+v", result)
			}
			if got := server.lastHeaders().Get("Authorization"); got != test.want {
				t.Errorf("the server got the Authorization %q, want %q", got, test.want)
			}
		})
	}
}

// The credential of the installation is for its own server, with its configured
// connection. Everything else is chosen by users who write triggers.
func TestInstallationCredentialGoesNowhereElse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authorization")
	if err := os.WriteFile(file, []byte("Bearer of-the-installation"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys := &fakeKeys{}
	keys.set("shop", "monitoring", "token", "own")
	keys.set("shop", "monitoring", "ca", "")
	for name, test := range map[string]struct {
		member string
		want   string
	}{
		"default server":            {``, "Bearer of-the-installation"},
		"default server by address": {`,"serverAddress":"DEFAULT"`, "Bearer of-the-installation"},
		"other server":              {`,"serverAddress":"OTHER"`, ""},
		"other path":                {`,"serverAddress":"DEFAULT/other"`, ""},
		"own credential":            {`,"authorization":{"credentials":{"name":"monitoring","key":"token"}}`, "Bearer own"},
		"own TLS configuration":     {`,"tlsConfig":{"serverName":"prometheus.example.com"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, other := newFakePrometheus(t), newFakePrometheus(t)
			server.respond(http.StatusOK, vector("0"))
			other.respond(http.StatusOK, vector("0"))
			prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, AuthorizationHeaderFile: file, AuthorizedNamespaces: []string{"shop"}, Servers: loopback(t), Keys: keys})
			member := strings.NewReplacer("DEFAULT", server.URL, "OTHER", other.URL).Replace(test.member)
			evaluate(t, prometheus, inNamespace("shop", `{"query":"requests","threshold":5`+member+`}`))
			got := server.lastHeaders().Get("Authorization") + other.lastHeaders().Get("Authorization")
			if got != test.want {
				t.Errorf("the Authorization %q was sent, want %q", got, test.want)
			}
		})
	}
}

func TestCredentialsThatCannotBeRead(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for name, test := range map[string]struct {
		failing error
		says    string
	}{
		"missing key": {nil, `has no key "token"`},
		"missing":     {apierrors.NewNotFound(secrets, "monitoring"), "does not exist"},
		"forbidden":   {apierrors.NewForbidden(secrets, "monitoring", nil), "may not read"},
		"failing":     {apierrors.NewInternalError(fmt.Errorf("boom")), "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakePrometheus(t)
			server.respond(http.StatusOK, vector("0"))
			prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: &fakeKeys{failing: test.failing}})
			result := evaluate(t, prometheus, inNamespace("shop", `{"query":"requests","threshold":5,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`))
			if result.State != Unknown || result.Reason != v1alpha1.ReasonCredentialsUnavailable || !strings.Contains(result.Message, test.says) {
				t.Errorf("got %+v", result)
			}
			if headers := server.lastHeaders(); headers != nil {
				t.Errorf("the server was queried without the credential: %v", headers)
			}
		})
	}
}

// A server that repeats a credential does not get it into the status.
func TestCredentialsAreNotRepeated(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"status":"error","errorType":"bad_data","error":"you sent %s"}`, r.Header.Get("Authorization"))
	}))
	defer server.Close()
	keys := &fakeKeys{}
	keys.set("shop", "monitoring", "token", "s3cr3t")
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: keys})
	result := evaluate(t, prometheus, inNamespace("shop", `{"query":"requests","threshold":5,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`))
	if result.Reason != v1alpha1.ReasonQueryRejected || strings.Contains(result.Message, "s3cr3t") || strings.Contains(result.Message, "you sent") {
		t.Errorf("got %+v", result)
	}
}

func TestCredentialsAreReadAgain(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(http.StatusOK, vector("0"))
	keys, clock := &fakeKeys{}, clocktesting.NewFakePassiveClock(time.Now())
	keys.set("shop", "monitoring", "token", "old")
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: keys, Clock: clock})
	subject := inNamespace("shop", `{"query":"requests","threshold":5,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`)
	evaluate(t, prometheus, subject)
	evaluate(t, prometheus, subject)
	if keys.reads != 1 {
		t.Errorf("read %d times, want once in %s", keys.reads, credentials.MaxAge)
	}
	keys.set("shop", "monitoring", "token", "new")
	clock.SetTime(clock.Now().Add(credentials.MaxAge))
	evaluate(t, prometheus, subject)
	if got := server.lastHeaders().Get("Authorization"); got != "Bearer new" {
		t.Errorf("after the rotation the server got %q", got)
	}
}

// A namespace does not get results that another one queried with its credential.
func TestResultsStayInTheirNamespace(t *testing.T) {
	server := newFakePrometheus(t)
	server.respond(http.StatusOK, vector("0"))
	keys := &fakeKeys{}
	keys.set("shop", "monitoring", "token", "of the shop")
	prometheus := newTestPrometheus(t, PrometheusOptions{ServerAddress: server.URL, Servers: loopback(t), Keys: keys})
	metadata := `{"query":"requests","threshold":5,"authorization":{"credentials":{"name":"monitoring","key":"token"}}}`
	subject := inNamespace("shop", metadata)
	subject.MaxAge = time.Minute
	if result := evaluate(t, prometheus, subject); result.State != Idle {
		t.Fatalf("got %+v", result)
	}
	subject = inNamespace("other", metadata)
	subject.MaxAge = time.Minute
	if result := evaluate(t, prometheus, subject); result.Reason != v1alpha1.ReasonCredentialsUnavailable {
		t.Errorf("another namespace got %+v", result)
	}
	keys.set("other", "monitoring", "token", "of the shop")
	before := len(server.queries)
	evaluate(t, prometheus, subject)
	if len(server.queries) == before {
		t.Error("another namespace got the result of the first one")
	}
}

// issue returns a certificate with a name, and its key.
func issue(authority *certificates.Authority, name string, usage x509.ExtKeyUsage) (certificate, key string) {
	issued := authority.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
	return string(issued.CertificatePEM), string(issued.KeyPEM)
}

func TestServerWithClientCertificates(t *testing.T) {
	ca := certificates.NewAuthority("authority", certificates.ECDSA)
	fake := &fakePrometheus{up: "1", body: vector("0")}
	server := httptest.NewUnstartedServer(fake)
	certificate, key := issue(ca, "prometheus.example.com", x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.Certificate)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	server.StartTLS()
	defer server.Close()

	keys := &fakeKeys{}
	certificate, key = issue(ca, "elasti", x509.ExtKeyUsageClientAuth)
	keys.set("shop", "tls", "ca.crt", string(ca.PEM()))
	keys.set("shop", "tls", "tls.crt", certificate)
	keys.set("shop", "tls", "tls.key", key)
	keys.set("shop", "broken", "ca.crt", "not a certificate")
	const (
		authorities = `"ca":{"secret":{"name":"tls","key":"ca.crt"}}`
		client      = `"cert":{"secret":{"name":"tls","key":"tls.crt"}},"keySecret":{"name":"tls","key":"tls.key"}`
		serverName  = `"serverName":"prometheus.example.com"`
	)
	for name, test := range map[string]struct {
		config string
		want   string
	}{
		"all that is needed":         {authorities + "," + client + "," + serverName, v1alpha1.ReasonBelowThreshold},
		"no client certificate":      {authorities + "," + serverName, v1alpha1.ReasonServerFailed},
		"unknown authority":          {client + "," + serverName, v1alpha1.ReasonServerFailed},
		"wrong name":                 {authorities + "," + client, v1alpha1.ReasonServerFailed},
		"authority is not a PEM":     {`"ca":{"secret":{"name":"broken","key":"ca.crt"}}`, v1alpha1.ReasonCredentialsUnavailable},
		"key is not the one for it":  {`"cert":{"secret":{"name":"tls","key":"tls.crt"}},"keySecret":{"name":"tls","key":"ca.crt"}`, v1alpha1.ReasonCredentialsUnavailable},
		"a key that is not there":    {`"ca":{"secret":{"name":"tls","key":"other"}}`, v1alpha1.ReasonCredentialsUnavailable},
		"a typing error is rejected": {`"insecureSkipVerfy":true`, v1alpha1.ReasonMetadataInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			prometheus := newTestPrometheus(t, PrometheusOptions{Servers: loopback(t), Keys: keys})
			result := evaluate(t, prometheus, inNamespace("shop", fmt.Sprintf(`{"query":"requests","threshold":5,"serverAddress":%q,"tlsConfig":{%s}}`, server.URL, test.config)))
			if result.Reason != test.want {
				t.Errorf("got %+v, want %s", result, test.want)
			}
			if strings.Contains(result.Message, "PRIVATE") {
				t.Errorf("the message shows a key: %s", result.Message)
			}
		})
	}
}
