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
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

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
	cluster, frontProxy := certificates.NewAuthority("cluster", certificates.RSA), certificates.NewAuthority("front-proxy", certificates.RSA)
	made := &credentials{directory: directory, clusterAuthority: cluster.PEM()}
	files := map[string][]byte{
		"ca.crt":              made.clusterAuthority,
		"front-proxy-ca.crt":  frontProxy.PEM(),
		"service-account.key": certificates.EncodeKey(certificates.RSA()),
	}
	for _, leaf := range []struct {
		file      string
		authority *certificates.Authority
		subject   pkix.Name
		addresses []net.IP
	}{
		// The second address is the one of the Service kubernetes.
		{"kube-apiserver", cluster, pkix.Name{CommonName: "kube-apiserver"}, []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(firstServiceAddress)}},
		{"admin", cluster, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, nil},
		{"front-proxy-client", frontProxy, pkix.Name{CommonName: "front-proxy-client"}, nil},
	} {
		issued := leaf.authority.Issue(x509.Certificate{Subject: leaf.subject, IPAddresses: leaf.addresses})
		files[leaf.file+".crt"], files[leaf.file+".key"] = issued.CertificatePEM, issued.KeyPEM
	}
	made.adminCertificate, made.adminKey = files["admin.crt"], files["admin.key"]
	for name, content := range files {
		if err := os.WriteFile(made.path(name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing the certificates: %w", err)
		}
	}
	return made, nil
}
