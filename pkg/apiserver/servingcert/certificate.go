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

package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	authorityValidity = 10 * 365 * 24 * time.Hour
	certValidity      = 365 * 24 * time.Hour
	// backdate keeps a certificate valid for a peer whose clock is behind.
	backdate = time.Hour
	// publishLead is how long a new authority is published before it is used:
	// every replica and the aggregator have learnt of it by then, even when
	// publishing it failed for some time.
	publishLead = 24 * time.Hour
)

// pair is a serving certificate with the authority that signed it. It is not
// changed once made.
type pair struct {
	// bundle holds the authorities in PEM, the newest first. authorityKey is
	// the key of the newest.
	bundle, authorityKey []byte
	cert, key            []byte

	authorities []*x509.Certificate
	signer      crypto.Signer
	leaf        *x509.Certificate
}

func (p *pair) parse() error {
	var err error
	if p.authorities, err = cert.ParseCertsPEM(p.bundle); err != nil {
		return fmt.Errorf("reading the certificate authorities: %w", err)
	}
	newest, err := tls.X509KeyPair(p.bundle, p.authorityKey)
	if err != nil {
		return fmt.Errorf("reading the key of the certificate authority: %w", err)
	}
	var ok bool
	if p.signer, ok = newest.PrivateKey.(crypto.Signer); !ok {
		return errors.New("the key of the certificate authority cannot sign")
	}
	served, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return fmt.Errorf("reading the serving certificate: %w", err)
	}
	if p.leaf, err = x509.ParseCertificate(served.Certificate[0]); err != nil {
		return fmt.Errorf("reading the serving certificate: %w", err)
	}
	return nil
}

// renew returns current when nothing of it is due, or what is to follow it.
//
// An authority in the last third of its life is replaced, but the serving
// certificate is signed by the new one only after publishLead.
func renew(current *pair, dnsNames []string, now time.Time) (*pair, error) {
	switch {
	case current == nil || expired(current.authorities[0], now):
		authority, signer, err := newAuthority(now)
		if err != nil {
			return nil, err
		}
		return sign([]*x509.Certificate{authority}, signer, dnsNames, now)
	case due(current.authorities[0], now):
		return addAuthority(current, now)
	case slices.Equal(current.leaf.DNSNames, dnsNames) && tooNew(current, now):
		return current, nil
	case due(current.leaf, now) || !slices.Equal(current.leaf.DNSNames, dnsNames) || !signedBy(current.leaf, current.authorities[0]):
		return sign(unexpired(current.authorities, now), current.signer, dnsNames, now)
	default:
		return current, nil
	}
}

// tooNew reports whether the newest authority is not to be used yet.
func tooNew(current *pair, now time.Time) bool {
	added := current.authorities[0].NotBefore.Add(backdate)
	return len(current.authorities) > 1 && now.Before(added.Add(publishLead)) && !expired(current.leaf, now)
}

func due(certificate *x509.Certificate, now time.Time) bool {
	life := certificate.NotAfter.Sub(certificate.NotBefore)
	return now.After(certificate.NotAfter.Add(-life / 3))
}

func expired(certificate *x509.Certificate, now time.Time) bool {
	return now.After(certificate.NotAfter)
}

func signedBy(leaf, authority *x509.Certificate) bool {
	return leaf.CheckSignatureFrom(authority) == nil
}

func unexpired(authorities []*x509.Certificate, now time.Time) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(authorities), func(authority *x509.Certificate) bool { return expired(authority, now) })
}

// addAuthority puts a new authority in front of the bundle and keeps the
// serving certificate.
func addAuthority(current *pair, now time.Time) (*pair, error) {
	authority, signer, err := newAuthority(now)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(signer)
	if err != nil {
		return nil, fmt.Errorf("encoding the key of the certificate authority: %w", err)
	}
	authorities := append([]*x509.Certificate{authority}, unexpired(current.authorities, now)...)
	bundle, err := cert.EncodeCertificates(authorities...)
	if err != nil {
		return nil, fmt.Errorf("encoding the certificate authorities: %w", err)
	}
	return &pair{
		bundle: bundle, authorityKey: key, cert: current.cert, key: current.key,
		authorities: authorities, signer: signer, leaf: current.leaf,
	}, nil
}

func newAuthority(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the key of the certificate authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "elasti-apiserver-ca"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	authority, err := create(template, template, &key.PublicKey, key)
	return authority, key, err
}

// sign makes a serving certificate signed by the first authority.
func sign(authorities []*x509.Certificate, signer crypto.Signer, dnsNames []string, now time.Time) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the serving key: %w", err)
	}
	leaf, err := create(&x509.Certificate{
		Subject:     pkix.Name{CommonName: dnsNames[0]},
		DNSNames:    dnsNames,
		NotBefore:   now.Add(-backdate),
		NotAfter:    now.Add(certValidity),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authorities[0], &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	signed := &pair{authorities: authorities, signer: signer, leaf: leaf}
	if signed.bundle, err = cert.EncodeCertificates(authorities...); err != nil {
		return nil, fmt.Errorf("encoding the certificate authorities: %w", err)
	}
	if signed.cert, err = cert.EncodeCertificates(leaf); err != nil {
		return nil, fmt.Errorf("encoding the serving certificate: %w", err)
	}
	if signed.key, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, fmt.Errorf("encoding the serving key: %w", err)
	}
	if signed.authorityKey, err = keyutil.MarshalPrivateKeyToPEM(signer); err != nil {
		return nil, fmt.Errorf("encoding the key of the certificate authority: %w", err)
	}
	return signed, nil
}

func create(template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}
