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

package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// PrivateServiceName returns the name of the private Service of a public Service.
func PrivateServiceName(service string) string {
	suffix := "-pvt-" + nameHash(service)
	const prefix = "elasti-"
	if longest := validation.DNS1035LabelMaxLength - len(prefix) - len(suffix); len(service) > longest {
		service = service[:longest]
	}
	return prefix + service + suffix
}

// ResolverSliceName returns the name of a resolver slice of a public Service. The
// number counts the slices of one family, from 0.
func ResolverSliceName(service string, family discoveryv1.AddressType, number int) string {
	name := "elasti-" + service + "-endpointslice-to-resolver-" + nameHash(service)
	if family == discoveryv1.AddressTypeIPv6 {
		name += "-ipv6"
	}
	if number > 0 {
		name = fmt.Sprintf("%s-%d", name, number+1)
	}
	return name
}

// IsResolverSliceName reports whether a name is one of a resolver slice of a public
// Service.
func IsResolverSliceName(name, service string) bool {
	rest, ok := strings.CutPrefix(name, ResolverSliceName(service, discoveryv1.AddressTypeIPv4, 0))
	return ok && (rest == "" || strings.HasPrefix(rest, "-"))
}

func nameHash(service string) string {
	sum := sha256.Sum256([]byte(service))
	return hex.EncodeToString(sum[:])[:10]
}
