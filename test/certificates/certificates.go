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

// Package certificates makes certificate authorities, and certificates that these sign,
// for tests. What cannot be made is a fault of the test, and a panic.
//
// It does not know what presents or verifies them. Begin with Authority.
package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"math/big"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const rsaBits = 2048

// Authority signs certificates.
type Authority struct {
	// Certificate is the certificate of the authority.
	Certificate *x509.Certificate

	newKey func() crypto.Signer
	key    crypto.Signer
}

// Issued is a certificate and its key.
type Issued struct {
	// Certificate is the certificate.
	Certificate *x509.Certificate
	// CertificatePEM and KeyPEM are the certificate and its key in PEM.
	CertificatePEM, KeyPEM []byte
}

// NewAuthority creates an authority. Its key, and those of the certificates that it
// issues, are made by newKey: ECDSA or RSA.
func NewAuthority(commonName string, newKey func() crypto.Signer) *Authority {
	key := newKey()
	return &Authority{must(cert.NewSelfSignedCACert(cert.Config{CommonName: commonName}, key)), newKey, key}
}

// PEM returns the certificate of the authority in PEM.
func (a *Authority) PEM() []byte { return must(cert.EncodeCertificates(a.Certificate)) }

// Issue returns a certificate for what the template says. Without a NotBefore it is valid
// since an hour ago, without a NotAfter for a day, and without an ExtKeyUsage for servers
// and clients.
func (a *Authority) Issue(template x509.Certificate) Issued {
	template.SerialNumber = must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)))
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	key := a.newKey()
	der := must(x509.CreateCertificate(rand.Reader, &template, a.Certificate, key.Public(), a.key))
	certificate := must(x509.ParseCertificate(der))
	return Issued{certificate, must(cert.EncodeCertificates(certificate)), EncodeKey(key)}
}

// ECDSA makes a key quickly.
func ECDSA() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

// RSA makes a key of the kind that clusters have by default. How long it takes to verify
// a certificate depends on the kind of the key.
func RSA() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, rsaBits)) }

// EncodeKey returns a key in PEM.
func EncodeKey(key crypto.Signer) []byte { return must(keyutil.MarshalPrivateKeyToPEM(key)) }

func must[T any](made T, err error) T {
	if err != nil {
		panic(fmt.Errorf("making certificates for a test: %w", err))
	}
	return made
}
