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

// Package credentials reads the credentials that triggers refer to, from the Secrets and
// ConfigMaps of their namespaces, and keeps the connections that use them.
//
// It does not know whether the author of a trigger may read these, which is checked when
// the trigger is written. Begin with Store.
package credentials

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
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

const (
	// maxCredentials bounds how many credentials are kept. The least recently
	// used go first, with their connections.
	maxCredentials = 1024
	// MaxAge is how long credentials are used before they are read again: a
	// rotated one is in use by then.
	MaxAge = 30 * time.Second
)

// Credentials are those of one trigger, ready for use. They are immutable.
type Credentials struct {
	// Authorization is the value of the Authorization header, or empty.
	Authorization string
	// Transport connects with the TLS configuration. Nil means the shared one.
	Transport *http.Transport
	// Version differs between credentials whose values differ. It holds no
	// secret.
	Version string

	read time.Time
}

// Store keeps the credentials that triggers refer to. It is safe for concurrent
// use.
type Store struct {
	keys  KeyReader
	clock clock.PassiveClock
	base  *http.Transport
	known *lru.Cache // of *Credentials by text
}

// NewStore returns a store that reads keys with a reader, and whose transports
// are copies of base with other TLS configurations. Without a reader, triggers
// that refer to keys have no credentials.
func NewStore(keys KeyReader, clock clock.PassiveClock, base *http.Transport) *Store {
	return &Store{keys: keys, clock: clock, base: base, known: lru.NewWithEvictionFunc(maxCredentials, func(_ lru.Key, value any) {
		value.(*Credentials).closeIdleConnections()
	})}
}

func (c *Credentials) closeIdleConnections() {
	if c.Transport != nil {
		c.Transport.CloseIdleConnections()
	}
}

// Clear forgets all credentials and closes their connections that are not in
// use.
func (s *Store) Clear() { s.known.Clear() }

// Get returns the credentials of a trigger in a namespace, nil if it has none.
// Every error is an *Error.
func (s *Store) Get(ctx context.Context, namespace string, spec *triggers.Credentials) (*Credentials, error) {
	if spec.IsZero() {
		return nil, nil
	}
	key := namespace + " " + spec.String()
	before, ok := s.known.Get(key)
	if ok && s.clock.Since(before.(*Credentials).read) < MaxAge {
		return before.(*Credentials), nil
	}
	if s.keys == nil {
		return nil, unavailable("this elasti-apiserver cannot read Secrets and ConfigMaps")
	}
	values := map[triggers.KeyReference][]byte{}
	var versions strings.Builder
	for _, reference := range spec.References() {
		value, version, err := s.keys.ReadKey(ctx, namespace, reference)
		if err != nil {
			if ok {
				// What was read before does not count any more.
				s.known.Remove(key)
				before.(*Credentials).closeIdleConnections()
			}
			return nil, explainKeyError(namespace, reference, err)
		}
		values[reference] = value
		versions.WriteString(version + " ")
	}
	if ok && before.(*Credentials).Version == versions.String() {
		same := *before.(*Credentials)
		same.read = s.clock.Now()
		s.known.Add(key, &same)
		return &same, nil
	}
	made, err := s.make(spec, values)
	if err != nil {
		return nil, err
	}
	made.Version, made.read = versions.String(), s.clock.Now()
	if ok {
		before.(*Credentials).closeIdleConnections()
	}
	s.known.Add(key, made)
	return made, nil
}

func (s *Store) make(spec *triggers.Credentials, values map[triggers.KeyReference][]byte) (*Credentials, error) {
	made := &Credentials{}
	text := func(reference *triggers.KeyReference) string { return strings.TrimSpace(string(values[*reference])) }
	switch {
	case spec.Authorization != nil:
		made.Authorization = spec.AuthorizationType + " " + text(spec.Authorization)
	case spec.Username != nil:
		pair := text(spec.Username) + ":" + text(spec.Password)
		made.Authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(pair))
	}
	if strings.ContainsAny(made.Authorization, "\r\n\x00") {
		return nil, unavailable("the credential has line breaks or control characters in it: store it without")
	}
	if !spec.HasTLS() {
		return made, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: spec.ServerName}
	if spec.CA != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(values[*spec.CA]) {
			return nil, unavailable("%s holds no certificate in PEM", spec.CA)
		}
	}
	if spec.Certificate != nil {
		pair, err := tls.X509KeyPair(values[*spec.Certificate], values[*spec.PrivateKey])
		if err != nil {
			// The error may describe the key.
			return nil, unavailable("%s and %s are not a certificate and its private key in PEM", spec.Certificate, spec.PrivateKey)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	made.Transport = s.base.Clone()
	made.Transport.TLSClientConfig = config
	return made, nil
}

// Error says why the credentials of a trigger cannot be used. It holds no
// secret.
type Error struct{ message string }

// Error returns a sentence for the user.
func (e *Error) Error() string { return e.message }

func unavailable(message string, args ...any) error {
	return &Error{message: fmt.Sprintf(message, args...)}
}

func explainKeyError(namespace string, reference triggers.KeyReference, err error) error {
	var missing *MissingKeyError
	switch {
	case errors.As(err, &missing):
		return unavailable("%s %q in the namespace %s has no key %q: add it, or correct the trigger", reference.Kind, reference.Name, namespace, reference.Key)
	case apierrors.IsNotFound(err):
		return unavailable("%s %q does not exist in the namespace %s: create it, or correct the trigger", reference.Kind, reference.Name, namespace)
	case apierrors.IsForbidden(err):
		return unavailable("the elasti-apiserver may not read %s %q in the namespace %s: allow its service account to get it with a Role", reference.Kind, reference.Name, namespace)
	default:
		return unavailable("%s %q in the namespace %s cannot be read: %s", reference.Kind, reference.Name, namespace, apierrors.ReasonForError(err))
	}
}
