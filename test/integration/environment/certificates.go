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

package environment

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	certificateValidity = 24 * time.Hour
	keyBits             = 2048
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func newAuthority(commonName string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: commonName}, key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate authority %s: %w", commonName, err)
	}
	return &authority{certificate: certificate, key: key}, nil
}

// pem is the certificate of the authority.
func (a *authority) pem() ([]byte, error) {
	return cert.EncodeCertificates(a.certificate)
}

// issue returns a certificate and its key in PEM, for clients and, when there
// are addresses, for a server.
func (a *authority) issue(subject pkix.Name, addresses ...net.IP) (certificate, key []byte, err error) {
	private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Minute),
		NotAfter:     now.Add(certificateValidity),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses:  addresses,
	}, a.certificate, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %s: %w", subject.CommonName, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the certificate of %s: %w", subject.CommonName, err)
	}
	if certificate, err = cert.EncodeCertificates(parsed); err != nil {
		return nil, nil, fmt.Errorf("encoding the certificate of %s: %w", subject.CommonName, err)
	}
	key, err = encodeKey(private)
	return certificate, key, err
}

// newKey creates a key of the default kind of clusters. Certificates are verified with
// each request, and the time for that depends on the kind of the key.
func newKey() (*rsa.PrivateKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

func encodeKey(key *rsa.PrivateKey) ([]byte, error) {
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encoded, nil
}

// credentials are the certificates of a control plane, as files in one folder.
type credentials struct {
	directory string
	// clusterAuthority is what clients verify kube-apiserver with, in PEM.
	clusterAuthority []byte
	// adminCertificate and adminKey are those of an administrator of the cluster.
	adminCertificate, adminKey []byte
}

func (c *credentials) path(name string) string { return filepath.Join(c.directory, name) }

// newCredentials creates the certificates of a control plane on loopback.
func newCredentials(directory string) (*credentials, error) {
	if err := os.Mkdir(directory, 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of the certificates: %w", err)
	}
	cluster, err := newAuthority("cluster")
	if err != nil {
		return nil, err
	}
	frontProxy, err := newAuthority("front-proxy")
	if err != nil {
		return nil, err
	}
	serviceAccountKey, err := newKey()
	if err != nil {
		return nil, err
	}
	made := &credentials{directory: directory}
	files := map[string][]byte{}
	if made.clusterAuthority, err = cluster.pem(); err != nil {
		return nil, err
	}
	files["ca.crt"] = made.clusterAuthority
	if files["front-proxy-ca.crt"], err = frontProxy.pem(); err != nil {
		return nil, err
	}
	if files["service-account.key"], err = encodeKey(serviceAccountKey); err != nil {
		return nil, err
	}
	for _, leaf := range []struct {
		file      string
		authority *authority
		subject   pkix.Name
		addresses []net.IP
	}{
		// The second address is the one of the Service kubernetes.
		{"kube-apiserver", cluster, pkix.Name{CommonName: "kube-apiserver"}, []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(firstServiceAddress)}},
		{"admin", cluster, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, nil},
		{"front-proxy-client", frontProxy, pkix.Name{CommonName: "front-proxy-client"}, nil},
	} {
		certificate, key, err := leaf.authority.issue(leaf.subject, leaf.addresses...)
		if err != nil {
			return nil, err
		}
		files[leaf.file+".crt"], files[leaf.file+".key"] = certificate, key
	}
	made.adminCertificate, made.adminKey = files["admin.crt"], files["admin.key"]
	for name, content := range files {
		if err := os.WriteFile(made.path(name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing the certificates: %w", err)
		}
	}
	return made, nil
}
