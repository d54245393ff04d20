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

package metricsauth

import (
	"crypto/tls"
	"errors"
	"fmt"

	"k8s.io/client-go/util/cert"
)

// certificateName is the common name of the self-signed certificate.
const certificateName = "elasti-resolver"

// TLSConfig returns the TLS configuration of the metrics endpoint. The files, in
// PEM, are read for each connection, so that a rotated certificate takes effect at
// once. Without files the certificate is self-signed.
func TLSConfig(certificateFile, keyFile string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case (certificateFile == "") != (keyFile == ""):
		return nil, errors.New("a certificate needs its key, and a key its certificate")
	case certificateFile == "":
		made, err := selfSigned()
		if err != nil {
			return nil, fmt.Errorf("generating a self-signed certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{made}
		return config, nil
	}
	load := func() (*tls.Certificate, error) {
		loaded, err := tls.LoadX509KeyPair(certificateFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("reading the certificate %s and its key %s: %w", certificateFile, keyFile, err)
		}
		return &loaded, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return load() }
	return config, nil
}

func selfSigned() (tls.Certificate, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey(certificateName, nil, nil)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}
