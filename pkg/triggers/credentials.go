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

package triggers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DefaultAuthorizationType is the scheme of the Authorization header.
const DefaultAuthorizationType = "Bearer"

// Credentials authenticate a trigger of TypePrometheus to its server, and the server to
// it. They are read from the namespace of the ElastiService. The zero value means none.
type Credentials struct {
	// AuthorizationType is the scheme of the Authorization header. Set with
	// Authorization only.
	AuthorizationType string
	// Authorization is what follows the scheme.
	Authorization *KeyReference
	// Username and Password are for basic authentication. Both or none.
	Username, Password *KeyReference
	// CA holds the PEM certificates of the authorities that may sign the
	// server's certificate. Nil means those of the system.
	CA *KeyReference
	// Certificate and PrivateKey are the client's, as PEM. Both or none.
	Certificate, PrivateKey *KeyReference
	// ServerName is the name in the server's certificate. Empty means the host
	// of the address.
	ServerName string
}

// Kinds of objects that a KeyReference is about.
const (
	KindSecret    = "Secret"
	KindConfigMap = "ConfigMap"
)

// KeyReference names a key of a Secret or ConfigMap.
type KeyReference struct {
	// Kind is KindSecret or KindConfigMap.
	Kind string
	Name string
	Key  string
}

// String describes the reference for messages.
func (r KeyReference) String() string { return fmt.Sprintf("%s %s, key %s", r.Kind, r.Name, r.Key) }

// IsZero reports whether there are no credentials.
func (c *Credentials) IsZero() bool { return *c == Credentials{} }

// String tells credentials apart. It holds no secret.
func (c *Credentials) String() string {
	return fmt.Sprintf("authorization %s %v, basic %v %v, ca %v, client %v %v, server %q",
		c.AuthorizationType, c.Authorization, c.Username, c.Password, c.CA, c.Certificate, c.PrivateKey, c.ServerName)
}

// HasTLS reports whether the connection is configured.
func (c *Credentials) HasTLS() bool {
	return c.CA != nil || c.Certificate != nil || c.ServerName != ""
}

// References returns the keys that the credentials are read from.
func (c *Credentials) References() []KeyReference {
	var references []KeyReference
	for _, reference := range []*KeyReference{c.Authorization, c.Username, c.Password, c.CA, c.Certificate, c.PrivateKey} {
		if reference != nil {
			references = append(references, *reference)
		}
	}
	return references
}

// The members of metadata, which are named as in the Prometheus Operator.
type (
	keySelector struct {
		Name string `json:"name"`
		Key  string `json:"key"`
	}
	secretOrConfigMap struct {
		Secret    *keySelector `json:"secret"`
		ConfigMap *keySelector `json:"configMap"`
	}
	authorizationMember struct {
		Type        string       `json:"type"`
		Credentials *keySelector `json:"credentials"`
	}
	basicAuthMember struct {
		Username *keySelector `json:"username"`
		Password *keySelector `json:"password"`
	}
	tlsConfigMember struct {
		CA         *secretOrConfigMap `json:"ca"`
		Cert       *secretOrConfigMap `json:"cert"`
		KeySecret  *keySelector       `json:"keySecret"`
		ServerName string             `json:"serverName"`
	}
)

const (
	authorizationKey = "authorization"
	basicAuthKey     = "basicAuth"
	tlsConfigKey     = "tlsConfig"
)

// credentials returns the members that say which credentials a trigger has.
func (v values) credentials(serverAddress string, headers map[string]string, path *field.Path, errs *field.ErrorList) Credentials {
	var parsed Credentials
	if authorization, ok := member[authorizationMember](v, authorizationKey, path, errs); ok {
		here := path.Child(authorizationKey)
		parsed.AuthorizationType = authorization.Type
		if parsed.AuthorizationType == "" {
			parsed.AuthorizationType = DefaultAuthorizationType
		}
		if !httpguts.ValidHeaderFieldName(parsed.AuthorizationType) {
			*errs = append(*errs, field.Invalid(here.Child("type"), authorization.Type, "is not a scheme of the Authorization header, such as Bearer"))
		}
		parsed.Authorization = authorization.Credentials.reference(KindSecret, here.Child("credentials"), errs)
	}
	if basic, ok := member[basicAuthMember](v, basicAuthKey, path, errs); ok {
		here := path.Child(basicAuthKey)
		parsed.Username = basic.Username.reference(KindSecret, here.Child("username"), errs)
		parsed.Password = basic.Password.reference(KindSecret, here.Child("password"), errs)
		if _, both := v[authorizationKey]; both {
			*errs = append(*errs, field.Forbidden(here, "give authorization or basicAuth, not both"))
		}
	}
	for name := range headers {
		if (parsed.Authorization != nil || parsed.Username != nil) && strings.EqualFold(name, "authorization") {
			*errs = append(*errs, field.Forbidden(path.Child("headers").Key(name), "the Authorization header comes from authorization or basicAuth already: take one out"))
		}
	}
	if config, ok := member[tlsConfigMember](v, tlsConfigKey, path, errs); ok {
		config.read(&parsed, path.Child(tlsConfigKey), errs)
		if address, err := url.Parse(serverAddress); err == nil && address.Scheme == "http" {
			*errs = append(*errs, field.Forbidden(path.Child(tlsConfigKey), "is for a serverAddress that starts with https://"))
		}
	}
	return parsed
}

func (c *tlsConfigMember) read(parsed *Credentials, path *field.Path, errs *field.ErrorList) {
	parsed.ServerName = c.ServerName
	if c.CA != nil {
		parsed.CA = c.CA.reference(path.Child("ca"), errs)
	}
	if c.Cert != nil {
		parsed.Certificate = c.Cert.reference(path.Child("cert"), errs)
	}
	if c.KeySecret != nil {
		parsed.PrivateKey = c.KeySecret.reference(KindSecret, path.Child("keySecret"), errs)
	}
	if (c.Cert == nil) != (c.KeySecret == nil) {
		*errs = append(*errs, field.Required(path, "a client certificate needs both cert and keySecret"))
	}
	if len(c.ServerName) > validation.DNS1123SubdomainMaxLength {
		*errs = append(*errs, field.TooLong(path.Child("serverName"), "", validation.DNS1123SubdomainMaxLength))
	}
}

func (s *secretOrConfigMap) reference(path *field.Path, errs *field.ErrorList) *KeyReference {
	switch {
	case s.Secret != nil && s.ConfigMap == nil:
		return s.Secret.reference(KindSecret, path.Child("secret"), errs)
	case s.ConfigMap != nil && s.Secret == nil:
		return s.ConfigMap.reference(KindConfigMap, path.Child("configMap"), errs)
	default:
		*errs = append(*errs, field.Required(path, "give one of secret and configMap"))
		return nil
	}
}

func (s *keySelector) reference(kind string, path *field.Path, errs *field.ErrorList) *KeyReference {
	if s == nil {
		*errs = append(*errs, field.Required(path, "give the name and the key of a "+kind+" in the same namespace"))
		return nil
	}
	for _, problem := range validation.IsDNS1123Subdomain(s.Name) {
		*errs = append(*errs, field.Invalid(path.Child("name"), s.Name, problem))
	}
	for _, problem := range validation.IsConfigMapKey(s.Key) {
		*errs = append(*errs, field.Invalid(path.Child("key"), s.Key, problem))
	}
	return &KeyReference{Kind: kind, Name: s.Name, Key: s.Key}
}

// member decodes an object strictly: a misspelled member would leave a
// connection less safe than it looks.
func member[T any](v values, key string, path *field.Path, errs *field.ErrorList) (T, bool) {
	var decoded T
	raw, ok := v[key]
	if !ok || string(bytes.TrimSpace(raw)) == "null" {
		return decoded, false
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&decoded); err != nil {
		// The error names a member or a type, and no value.
		*errs = append(*errs, field.Invalid(path.Child(key), field.OmitValueType{}, err.Error()))
		return decoded, false
	}
	return decoded, true
}
