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
	"crypto/x509"
	"encoding/pem"

	"github.com/prometheus/client_golang/prometheus"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_*
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // rest_client_*
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/buildinfo"
	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	elastiserviceregistry "github.com/truefoundry/elasti-apiserver/pkg/registry/elasti/elastiservice"
)

// Metrics are those of the product that each server has. The libraries of Kubernetes
// register theirs themselves, and the embedded store its own.
type Metrics struct {
	registry   *elastiserviceregistry.Metrics
	controller *elastiservicecontroller.Metrics
	informers  *informers.Metrics
	sleep      *sleep.Metrics
}

// Certificate is a certificate that a server serves, which may be replaced meanwhile.
type Certificate interface {
	// CurrentCertKeyContent returns the certificate and its key in PEM.
	CurrentCertKeyContent() (certificate, key []byte)
}

// NewMetrics returns metrics that are registered with a registerer. certificate is that
// which the server serves.
func NewMetrics(registerer prometheus.Registerer, certificate Certificate) *Metrics {
	registerer.MustRegister(
		buildinfo.NewMetric("elasti_operator_build_info"),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "elasti_operator_serving_certificate_expiry_timestamp_seconds",
			Help: "Time at which the serving certificate expires, in seconds since 1970. Zero when there is none.",
		}, func() float64 { return expiryOf(certificate) }),
	)
	return &Metrics{
		registry:   elastiserviceregistry.NewMetrics(registerer),
		controller: elastiservicecontroller.NewMetrics(registerer),
		informers:  informers.NewMetrics(registerer),
		sleep:      sleep.NewMetrics(registerer, clock.RealClock{}),
	}
}

// expiryOf returns when a certificate expires, in seconds since 1970, and zero when it
// cannot be read.
func expiryOf(certificate Certificate) float64 {
	content, _ := certificate.CurrentCertKeyContent()
	// The first certificate is that of the server, those of authorities follow.
	block, _ := pem.Decode(content)
	if block == nil {
		return 0
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return 0
	}
	return float64(leaf.NotAfter.Unix())
}
