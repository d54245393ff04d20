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

package programs

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"

	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

// loopback is where those servers listen that no other component queries.
const loopback = "127.0.0.1"

// KEDA is the operator of KEDA. For use by one goroutine.
type KEDA struct{ Program }

// NewKEDA prepares an operator for the ScaledObjects of one namespace in the
// cluster of a kubeconfig. The directory is for its certificates.
func NewKEDA(path, kubeconfig, namespace, directory string) (*KEDA, error) {
	metrics, err := FreeAddress(loopback)
	if err != nil {
		return nil, err
	}
	authority := certificates.NewAuthority("keda", certificates.RSA)
	issued := authority.Issue(x509.Certificate{Subject: pkix.Name{CommonName: "keda-operator"}, DNSNames: []string{"keda-operator"}})
	for name, content := range map[string][]byte{"ca.crt": authority.PEM(), "tls.crt": issued.CertificatePEM, "tls.key": issued.KeyPEM} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing a certificate for KEDA: %w", err)
		}
	}
	return &KEDA{Program{
		Path: path, Directory: directory,
		Arguments: []string{
			"--kubeconfig=" + kubeconfig, "--cert-dir=" + directory, "--metrics-service-bind-address=" + metrics,
			"--health-probe-bind-address=0", "--enable-prometheus-metrics=false",
		},
		Environment: []string{"WATCH_NAMESPACE=" + namespace, "POD_NAMESPACE=" + namespace, "KEDA_CLUSTER_OBJECT_NAMESPACE=" + namespace},
	}}, nil
}
