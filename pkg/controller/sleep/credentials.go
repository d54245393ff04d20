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

package sleep

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

const (
	// maxCredentials bounds how many credentials are kept. The least recently
	// used go first, with their connections.
	maxCredentials = 1024
	// credentialsAge is how long credentials are used before they are read
	// again: a rotated one is in use by then.
	credentialsAge = 30 * time.Second
	// redacted stands where a server repeats a credential.
	redacted = "[redacted]"
)

// KeyReader reads the keys that triggers refer to. Safe for concurrent use.
type KeyReader interface {
	// ReadKey returns the value of a key, and something that is another one
	// when the value is. The error carries the API status of the server; a key
	// that the object does not have is a *MissingKeyError.
	ReadKey(ctx context.Context, namespace string, reference triggers.KeyReference) (value []byte, version string, err error)
}

// MissingKeyError says that an object has no such key, or an empty one.
type MissingKeyError struct {
	Reference triggers.KeyReference
}

// Error names the key.
func (e *MissingKeyError) Error() string { return fmt.Sprintf("there is no %s", e.Reference) }

// ClusterKeys reads keys from the Secrets and ConfigMaps of a cluster, each
// with one get request, so that it needs no permission to list or watch them.
type ClusterKeys struct {
	host kubernetes.Interface
}

var _ KeyReader = &ClusterKeys{}

// NewClusterKeys returns a reader of the objects that a clientset reaches.
func NewClusterKeys(host kubernetes.Interface) *ClusterKeys { return &ClusterKeys{host: host} }

// ReadKey reads a key.
func (c *ClusterKeys) ReadKey(ctx context.Context, namespace string, reference triggers.KeyReference) ([]byte, string, error) {
	var value []byte
	var version string
	if reference.Kind == triggers.KindConfigMap {
		found, err := c.host.CoreV1().ConfigMaps(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if err != nil {
			return nil, "", err
		}
		value, version = []byte(found.Data[reference.Key]), string(found.UID)+found.ResourceVersion
	} else {
		found, err := c.host.CoreV1().Secrets(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		if err != nil {
			return nil, "", err
		}
		value, version = found.Data[reference.Key], string(found.UID)+found.ResourceVersion
	}
	if len(value) == 0 {
		return nil, "", &MissingKeyError{Reference: reference}
	}
	return value, version, nil
}

// credentials are those of one trigger, ready for use.
type credentials struct {
	// authorization is the value of the Authorization header, or empty.
	authorization string
	// secrets are what no message may show.
	secrets []string
	// transport connects with the TLS configuration. Nil means the shared one.
	transport *http.Transport
	// version tells credentials apart whose values differ.
	version string
	read    time.Time
}

// redact takes the secrets out of what a server says.
func (c *credentials) redact(text string) string {
	if c == nil {
		return text
	}
	for _, secret := range c.secrets {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// credentialStore keeps the credentials that triggers refer to. Safe for
// concurrent use.
type credentialStore struct {
	keys  KeyReader
	clock clock.PassiveClock
	base  *http.Transport
	known *lru.Cache // of *credentials by text
}

func newCredentialStore(keys KeyReader, clock clock.PassiveClock, base *http.Transport) *credentialStore {
	return &credentialStore{keys: keys, clock: clock, base: base, known: lru.NewWithEvictionFunc(maxCredentials, func(_ lru.Key, value any) {
		value.(*credentials).closeIdleConnections()
	})}
}

func (c *credentials) closeIdleConnections() {
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
}

// clear forgets all credentials and closes their connections.
func (s *credentialStore) clear() { s.known.Clear() }

// get returns the credentials of a trigger in a namespace, nil if it has none.
// Every error is an *answerError without any secret.
func (s *credentialStore) get(ctx context.Context, namespace string, wanted *triggers.Credentials) (*credentials, error) {
	if wanted.IsZero() {
		return nil, nil
	}
	key := namespace + " " + wanted.String()
	before, ok := s.known.Get(key)
	if ok && s.clock.Since(before.(*credentials).read) < credentialsAge {
		return before.(*credentials), nil
	}
	if s.keys == nil {
		return nil, noAnswer(v1alpha1.ReasonCredentialsUnavailable, "this elasti-apiserver cannot read Secrets and ConfigMaps")
	}
	values := map[triggers.KeyReference][]byte{}
	var versions strings.Builder
	for _, reference := range wanted.References() {
		value, version, err := s.keys.ReadKey(ctx, namespace, reference)
		if err != nil {
			return nil, explainKeyError(namespace, reference, err)
		}
		values[reference] = value
		versions.WriteString(version + " ")
	}
	if ok && before.(*credentials).version == versions.String() {
		same := *before.(*credentials)
		same.read = s.clock.Now()
		s.known.Add(key, &same)
		return &same, nil
	}
	made, err := s.make(wanted, values)
	if err != nil {
		return nil, err
	}
	made.version, made.read = versions.String(), s.clock.Now()
	if ok {
		before.(*credentials).closeIdleConnections()
	}
	s.known.Add(key, made)
	return made, nil
}

func (s *credentialStore) make(wanted *triggers.Credentials, values map[triggers.KeyReference][]byte) (*credentials, error) {
	made := &credentials{}
	text := func(reference *triggers.KeyReference) string { return strings.TrimSpace(string(values[*reference])) }
	switch {
	case wanted.Authorization != nil:
		token := text(wanted.Authorization)
		made.authorization, made.secrets = wanted.AuthorizationType+" "+token, []string{token}
	case wanted.Username != nil:
		password := text(wanted.Password)
		encoded := base64.StdEncoding.EncodeToString([]byte(text(wanted.Username) + ":" + password))
		made.authorization, made.secrets = "Basic "+encoded, []string{encoded, password}
	}
	if strings.ContainsAny(made.authorization, "\r\n\x00") {
		return nil, noAnswer(v1alpha1.ReasonCredentialsUnavailable, "the credential has line breaks or control characters in it: store it without")
	}
	if !wanted.HasTLS() {
		return made, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: wanted.ServerName}
	if wanted.CA != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(values[*wanted.CA]) {
			return nil, noAnswer(v1alpha1.ReasonCredentialsUnavailable, "%s holds no certificate in PEM", wanted.CA)
		}
	}
	if wanted.Certificate != nil {
		pair, err := tls.X509KeyPair(values[*wanted.Certificate], values[*wanted.PrivateKey])
		if err != nil {
			// The error may describe the key.
			return nil, noAnswer(v1alpha1.ReasonCredentialsUnavailable, "%s and %s are not a certificate and its private key in PEM", wanted.Certificate, wanted.PrivateKey)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	made.transport = s.base.Clone()
	made.transport.TLSClientConfig = config
	return made, nil
}

func explainKeyError(namespace string, reference triggers.KeyReference, err error) error {
	var missing *MissingKeyError
	switch {
	case errors.As(err, &missing):
		return noAnswer(v1alpha1.ReasonCredentialsUnavailable, "%s %q in the namespace %s has no key %q: add it, or correct the trigger", reference.Kind, reference.Name, namespace, reference.Key)
	case apierrors.IsNotFound(err):
		return noAnswer(v1alpha1.ReasonCredentialsUnavailable, "%s %q does not exist in the namespace %s: create it, or correct the trigger", reference.Kind, reference.Name, namespace)
	case apierrors.IsForbidden(err):
		return noAnswer(v1alpha1.ReasonCredentialsUnavailable, "the elasti-apiserver may not read %s %q in the namespace %s: allow its service account to get it with a Role", reference.Kind, reference.Name, namespace)
	default:
		return noAnswer(v1alpha1.ReasonCredentialsUnavailable, "%s %q in the namespace %s cannot be read: %s", reference.Kind, reference.Name, namespace, apierrors.ReasonForError(err))
	}
}
