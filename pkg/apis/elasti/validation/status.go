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
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// validateStatus checks what others rely on: resolvers listen on the proxy
// ports and run the readiness probes, and clients find conditions by their type.
func validateStatus(status *elasti.ElastiServiceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch status.Mode {
	case "", elasti.ModeProxy, elasti.ModeServe:
	default:
		errs = append(errs, field.NotSupported(path.Child("mode"), status.Mode, []elasti.Mode{elasti.ModeProxy, elasti.ModeServe}))
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(status.ObservedGeneration, path.Child("observedGeneration"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(status.Replicas), path.Child("replicas"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(status.ReadyReplicas), path.Child("readyReplicas"))...)
	if status.PrivateService != "" {
		for _, message := range validation.IsDNS1035Label(status.PrivateService) {
			errs = append(errs, field.Invalid(path.Child("privateService"), status.PrivateService, message))
		}
	}
	errs = append(errs, validateProxyPorts(status.ProxyPorts, path.Child("proxyPorts"))...)
	if status.ReadinessProbes != nil {
		for i := range status.ReadinessProbes.Probes {
			errs = append(errs, validateReadinessProbe(&status.ReadinessProbes.Probes[i], path.Child("readinessProbes", "probes").Index(i))...)
		}
	}
	errs = append(errs, validateActivity(status.Activity, path.Child("activity"))...)
	return append(errs, metav1validation.ValidateConditions(status.Conditions, path.Child("conditions"))...)
}

// validateActivity checks what the decision to sleep reads.
func validateActivity(entries []elasti.ResolverActivity, path *field.Path) field.ErrorList {
	if len(entries) > activity.MaxResolvers {
		return field.ErrorList{field.TooMany(path, len(entries), activity.MaxResolvers)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range entries {
		entry, entryPath := &entries[i], path.Index(i)
		errs = append(errs, validateResolverName(entry.Resolver, entryPath.Child("resolver"))...)
		if seen[entry.Resolver] {
			errs = append(errs, field.Duplicate(entryPath.Child("resolver"), entry.Resolver))
		}
		seen[entry.Resolver] = true
		errs = append(errs, validateOpen(entry.Open, entryPath.Child("open"))...)
		if entry.ReportTime.IsZero() {
			errs = append(errs, field.Required(entryPath.Child("reportTime"), "give the time of the report"))
		}
		if entry.ObservedSince.IsZero() {
			errs = append(errs, field.Required(entryPath.Child("observedSince"), "give the time from which on the resolver observed the traffic"))
		}
	}
	return errs
}

// validateProxyPorts validates proxy ports. Two ports may have the same one: Service
// ports without a free proxy port are on the shared HTTP port.
func validateProxyPorts(ports []elasti.ProxyPort, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[int32]bool{}
	for i, port := range ports {
		portPath := path.Index(i)
		for _, message := range validation.IsValidPortNum(int(port.Port)) {
			errs = append(errs, field.Invalid(portPath.Child("port"), port.Port, message))
		}
		for _, message := range validation.IsValidPortNum(int(port.ProxyPort)) {
			errs = append(errs, field.Invalid(portPath.Child("proxyPort"), port.ProxyPort, message))
		}
		if seen[port.Port] {
			errs = append(errs, field.Duplicate(portPath.Child("port"), port.Port))
		}
		seen[port.Port] = true
	}
	return errs
}

// validateReadinessProbe rejects probes that no resolver can run.
func validateReadinessProbe(probe *elasti.ReadinessProbeAction, path *field.Path) field.ErrorList {
	errs := apivalidation.ValidateNonnegativeField(int64(probe.TimeoutSeconds), path.Child("timeoutSeconds"))
	validatePort := func(port int32, path *field.Path) {
		for _, message := range validation.IsValidPortNum(int(port)) {
			errs = append(errs, field.Invalid(path.Child("port"), port, message))
		}
	}
	actions := 0
	if action := probe.HTTPGet; action != nil {
		actions++
		actionPath := path.Child("httpGet")
		validatePort(action.Port, actionPath)
		if action.Scheme != "HTTP" && action.Scheme != "HTTPS" {
			errs = append(errs, field.NotSupported(actionPath.Child("scheme"), action.Scheme, []string{"HTTP", "HTTPS"}))
		}
	}
	if action := probe.TCPSocket; action != nil {
		actions++
		validatePort(action.Port, path.Child("tcpSocket"))
	}
	if action := probe.GRPC; action != nil {
		actions++
		validatePort(action.Port, path.Child("grpc"))
	}
	if actions != 1 {
		errs = append(errs, field.Required(path, "exactly one of httpGet, tcpSocket and grpc"))
	}
	return errs
}
