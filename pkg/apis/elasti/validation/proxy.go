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

package validation

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// Bounds of how traffic is treated.
const (
	maxHoldTimeoutSeconds = 86400
	maxMaxPending         = 1000000
	maxConvergenceSeconds = 600
	maxProxySetSize       = 64
	maxPassiveLength      = 256
)

func validateProxy(proxy *elasti.ProxySpec, path *field.Path) field.ErrorList {
	errs := validateRange(proxy.HoldTimeoutSeconds, 1, maxHoldTimeoutSeconds, path.Child("holdTimeoutSeconds"))
	errs = append(errs, validateRange(proxy.MaxPending, 1, maxMaxPending, path.Child("maxPending"))...)
	errs = append(errs, validateRange(proxy.MaxConcurrencyPerPod, 0, maxMaxPending, path.Child("maxConcurrencyPerPod"))...)
	if proxy.ConvergenceSeconds != nil {
		errs = append(errs, validateRange(proxy.ConvergenceSeconds, 1, maxConvergenceSeconds, path.Child("convergenceSeconds"))...)
	}
	switch proxy.Policy {
	case elasti.ProxyWhenAsleep, elasti.ProxyAlways:
	default:
		errs = append(errs, field.NotSupported(path.Child("policy"), proxy.Policy, []elasti.ProxyPolicy{elasti.ProxyWhenAsleep, elasti.ProxyAlways}))
	}
	switch proxy.Readiness {
	case elasti.ReadinessProbe, elasti.ReadinessEndpoints:
	default:
		errs = append(errs, field.NotSupported(path.Child("readiness"), proxy.Readiness, []elasti.ReadinessPolicy{elasti.ReadinessProbe, elasti.ReadinessEndpoints}))
	}
	errs = append(errs, validateAllowedClients(proxy.AllowedClients, path.Child("allowedClients"))...)
	if proxy.Passive != nil {
		errs = append(errs, validatePassive(proxy.Passive, path.Child("passive"))...)
	}
	if proxy.ClientAddress != nil {
		headers := []elasti.ClientAddressHeader{elasti.ClientAddressNone, elasti.ClientAddressXForwardedFor, elasti.ClientAddressForwarded}
		if header := proxy.ClientAddress.Header; !slices.Contains(headers, header) {
			errs = append(errs, field.NotSupported(path.Child("clientAddress", "header"), header, headers))
		}
	}
	return errs
}

func validateAllowedClients(networks []string, path *field.Path) field.ErrorList {
	errs := validateSet(networks, path)
	for i, network := range networks {
		errs = append(errs, validation.IsValidCIDR(path.Index(i), network)...)
	}
	return errs
}

func validatePassive(passive *elasti.PassiveSpec, path *field.Path) field.ErrorList {
	errs := validateSet(passive.UserAgents, path.Child("userAgents"))
	for i, userAgent := range passive.UserAgents {
		errs = append(errs, validatePassiveText(userAgent, path.Child("userAgents").Index(i))...)
	}
	errs = append(errs, validateSet(passive.Paths, path.Child("paths"))...)
	for i, passivePath := range passive.Paths {
		valuePath := path.Child("paths").Index(i)
		errs = append(errs, validatePassiveText(passivePath, valuePath)...)
		if passivePath != "" && passivePath[0] != '/' || strings.ContainsAny(passivePath, "?#") {
			errs = append(errs, field.Invalid(valuePath, passivePath, "must begin with / and have no query"))
		}
	}
	errs = append(errs, validateSet(passive.Ports, path.Child("ports"))...)
	for i, port := range passive.Ports {
		for _, message := range validation.IsValidPortNum(int(port)) {
			errs = append(errs, field.Invalid(path.Child("ports").Index(i), port, message))
		}
	}
	return errs
}

func validatePassiveText(text string, path *field.Path) field.ErrorList {
	switch {
	case text == "":
		return field.ErrorList{field.Invalid(path, text, "must not be empty")}
	case len(text) > maxPassiveLength:
		return field.ErrorList{field.TooLong(path, text, maxPassiveLength)}
	default:
		return nil
	}
}

// validateSet checks the size of a list, and that nothing is in it twice.
func validateSet[T comparable](values []T, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(values) > maxProxySetSize {
		errs = append(errs, field.TooMany(path, len(values), maxProxySetSize))
	}
	seen := sets.New[T]()
	for i, value := range values {
		if seen.Has(value) {
			duplicate := field.Duplicate(path.Index(i), value)
			duplicate.Detail = "give each value once"
			errs = append(errs, duplicate)
		}
		seen.Insert(value)
	}
	return errs
}
