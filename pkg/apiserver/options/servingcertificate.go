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

package options

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// Sources of the serving certificate.
const (
	// CertificateSelfManaged is one that the server makes.
	CertificateSelfManaged = "self-managed"
	// CertificateFiles is one in files that the user keeps.
	CertificateFiles = "files"
)

// ServingCertificate says where the serving certificate comes from.
type ServingCertificate struct {
	// Source is self-managed (made by the server, shared through a Secret and
	// published in the APIService) or files (--tls-cert-file and
	// --tls-private-key-file, reloaded when they change; the user then sets the
	// caBundle of the APIService). Defaults to files when
	// --tls-cert-file is given, otherwise to self-managed.
	Source string
	// Namespace is where the server's Service and the Secret live. Defaults to
	// $POD_NAMESPACE, or elasti-system.
	Namespace string
	// ServiceName is the Service that the APIService points at.
	ServiceName string
	// SecretName is the Secret with the certificate.
	SecretName string
}

func newServingCertificate() ServingCertificate {
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "elasti-system"
	}
	return ServingCertificate{
		Namespace:   namespace,
		ServiceName: "elasti-apiserver",
		SecretName:  "elasti-apiserver-serving-cert",
	}
}

// AddFlags adds the flags of the serving certificate.
func (o *ServingCertificate) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Source, "serving-certificate", o.Source,
		"Where the serving certificate comes from: self-managed (made by the server, kept in a Secret and published in the APIService) or files (--tls-cert-file and --tls-private-key-file). Defaults to files when --tls-cert-file is given, otherwise to self-managed.")
	flags.StringVar(&o.Namespace, "namespace", o.Namespace,
		"The namespace of this server: of its Service, its Secret and its Lease. Defaults to $POD_NAMESPACE, or elasti-system.")
	flags.StringVar(&o.ServiceName, "service-name", o.ServiceName,
		"The Service that the APIService points at; the self-managed certificate is valid for its name.")
	flags.StringVar(&o.SecretName, "serving-certificate-secret", o.SecretName,
		"The Secret of the self-managed certificate. It is created when it does not exist.")
}

// Complete derives the source from the other flags when it is not given.
func (o *ServingCertificate) Complete(serving *genericoptions.SecureServingOptions) {
	if o.Source != "" {
		return
	}
	o.Source = CertificateSelfManaged
	if serving.ServerCert.CertKey.CertFile != "" {
		o.Source = CertificateFiles
	}
}

// Validate checks that the flags fit the source.
func (o *ServingCertificate) Validate(serving *genericoptions.SecureServingOptions) []error {
	hasFiles := serving.ServerCert.CertKey.CertFile != "" && serving.ServerCert.CertKey.KeyFile != ""
	switch o.Source {
	case CertificateSelfManaged:
		if hasFiles {
			return []error{errors.New("--serving-certificate=self-managed and --tls-cert-file exclude each other")}
		}
	case CertificateFiles:
		if !hasFiles {
			return []error{errors.New("--serving-certificate=files needs --tls-cert-file and --tls-private-key-file")}
		}
	default:
		return []error{fmt.Errorf("--serving-certificate is %q, but must be %s or %s", o.Source, CertificateSelfManaged, CertificateFiles)}
	}
	return nil
}
