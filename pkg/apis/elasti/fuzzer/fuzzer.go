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

// Package fuzzer fills the types of the API group with random values that
// could come out of decoding, for round-trip tests.
//
// It knows nothing of what is valid beyond that. Begin with Funcs.
package fuzzer

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Funcs returns the functions that fill what must not be just anything: what
// defaulting would change, and JSON.
func Funcs(runtimeserializer.CodecFactory) []any {
	return []any{
		func(spec *elasti.ElastiServiceSpec, c randfill.Continue) {
			c.FillNoCustom(spec)
			fillNumber(&spec.MinTargetReplicas, c)
			fillNumber(&spec.CooldownPeriod, c)
			if spec.Proxy == nil {
				spec.Proxy = &elasti.ProxySpec{}
				c.Fill(spec.Proxy)
			}
		},
		func(proxy *elasti.ProxySpec, c randfill.Continue) {
			c.FillNoCustom(proxy)
			fillNumber(&proxy.HoldTimeoutSeconds, c)
			fillNumber(&proxy.MaxPending, c)
			fillNumber(&proxy.MaxConcurrencyPerPod, c)
			proxy.Policy = oneOf(c, elasti.ProxyWhenAsleep, elasti.ProxyAlways)
			proxy.Readiness = oneOf(c, elasti.ReadinessProbe, elasti.ReadinessEndpoints)
		},
		func(passive *elasti.PassiveSpec, c randfill.Continue) {
			c.FillNoCustom(passive)
			if passive.WellKnown == nil {
				wellKnown := c.Bool()
				passive.WellKnown = &wellKnown
			}
		},
		func(clientAddress *elasti.ClientAddressSpec, c randfill.Continue) {
			c.FillNoCustom(clientAddress)
			clientAddress.Header = oneOf(c, elasti.ClientAddressNone, elasti.ClientAddressXForwardedFor, elasti.ClientAddressForwarded)
		},
		func(period *elasti.EnabledPeriod, c randfill.Continue) {
			period.Schedule = oneOf(c, v1alpha1.DefaultEnabledSchedule, "@daily", "*/5 8-17 * * 1-5")
			period.Duration = oneOf(c, v1alpha1.DefaultEnabledDuration, "90m")
			period.TimeZone = oneOf(c, v1alpha1.DefaultEnabledTimeZone, "Europe/Berlin")
		},
		func(match *elasti.PathMatch, c randfill.Continue) {
			c.FillNoCustom(match)
			match.Type = oneOf(c, elasti.PathMatchExact, elasti.PathMatchPrefix, elasti.PathMatchRegularExpression)
		},
		func(match *elasti.ValueMatch, c randfill.Continue) {
			c.FillNoCustom(match)
			match.Type = oneOf(c, elasti.ValueMatchExact, elasti.ValueMatchRegularExpression)
		},
		func(metadata *runtime.RawExtension, c randfill.Continue) {
			metadata.Raw = fmt.Appendf(nil, `{"query":"up","threshold":%d}`, c.Uint32())
		},
	}
}

func fillNumber(number **int32, c randfill.Continue) {
	if *number == nil {
		filled := c.Int31()
		*number = &filled
	}
}

func oneOf[T any](c randfill.Continue, values ...T) T {
	return values[c.Intn(len(values))]
}
