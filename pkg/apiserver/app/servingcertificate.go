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

package app

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/servingcert"
	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

// useSelfManagedCertificate has serving use the self-managed certificate, when that is chosen.
func useSelfManagedCertificate(o *options.ServingCertificate, serving *genericoptions.SecureServingOptions, host *rest.Config) error {
	if o.Source != options.CertificateSelfManaged {
		return nil
	}
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return fmt.Errorf("creating the client for the Secret of the serving certificate: %w", err)
	}
	registrations, err := apiregistration.NewForConfig(host)
	if err != nil {
		return fmt.Errorf("creating the client for the APIService: %w", err)
	}
	serviceHost := o.ServiceName + "." + o.Namespace + ".svc"
	serving.ServerCert.GeneratedCert = servingcert.New(servingcert.Options{
		Secrets:    client.CoreV1().Secrets(o.Namespace),
		SecretName: o.SecretName,
		DNSNames:   []string{serviceHost, serviceHost + ".cluster.local", o.ServiceName, "localhost"},
		Publisher: servingcert.APIServicePublisher{
			APIServices: registrations.ApiregistrationV1().APIServices(),
			Name:        registration.Name,
			Service:     types.NamespacedName{Namespace: o.Namespace, Name: o.ServiceName},
			Clock:       clock.RealClock{},
		},
		Clock: clock.RealClock{},
	})
	return nil
}
