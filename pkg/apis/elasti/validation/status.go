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
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// validateStatus checks what others rely on: resolvers listen on the proxy
// ports, and clients look for conditions by their type.
func validateStatus(status *elasti.ElastiServiceStatus, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch status.Mode {
	case "", elasti.ModeProxy, elasti.ModeServe:
	default:
		errs = append(errs, field.NotSupported(path.Child("mode"), status.Mode, []elasti.Mode{elasti.ModeProxy, elasti.ModeServe}))
	}
	errs = append(errs, validateProxyPorts(status.ProxyPorts, path.Child("proxyPorts"))...)
	return append(errs, metav1validation.ValidateConditions(status.Conditions, path.Child("conditions"))...)
}

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
