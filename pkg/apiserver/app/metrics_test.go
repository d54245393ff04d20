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
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

// served is a serving certificate.
type served []byte

func (s served) CurrentCertKeyContent() (certificate, key []byte) { return s, nil }

func TestExpiryOfTheServingCertificate(t *testing.T) {
	authority := certificates.NewAuthority("test", certificates.ECDSA)
	leaf := authority.Issue(x509.Certificate{DNSNames: []string{"localhost"}})
	certificate := slices.Concat(leaf.CertificatePEM, authority.PEM())
	const name = "elasti_operator_serving_certificate_expiry_timestamp_seconds"
	for _, check := range []struct {
		certificate []byte
		want        int64
	}{
		{certificate, leaf.Certificate.NotAfter.Unix()},
		{nil, 0},
		{[]byte("no PEM"), 0},
		{bytes.ReplaceAll(certificate, []byte("M"), []byte("N")), 0},
	} {
		registry := prometheus.NewPedanticRegistry()
		NewMetrics(registry, served(check.certificate))
		want := fmt.Sprintf("# HELP %[1]s Time at which the serving certificate expires, in seconds since 1970. Zero when there is none.\n# TYPE %[1]s gauge\n%[1]s %[2]g\n", name, float64(check.want))
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
	}
}
