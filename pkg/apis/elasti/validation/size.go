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
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
)

// Bounds of what a spec holds in all, in bytes. The server keeps the specs of all tenants
// in memory, and so does every resolver. Parts without a bound here are lists of few
// short values.
const (
	maxResponseBodiesBytes = 64 << 10
	maxMatchersBytes       = 64 << 10
	maxMetadataBytes       = 64 << 10
	maxPeriodBytes         = 256
)

// Bounds of what parts of the metadata hold, in bytes. Annotations have the bound of
// Kubernetes, which has room for a copy of the spec: kubectl apply writes one.
const (
	maxLabelsBytes          = 16 << 10
	maxOwnerReferencesBytes = 16 << 10
	maxFinalizersBytes      = 16 << 10
	maxManagedFieldsBytes   = 64 << 10
)

// validateMetadataSize checks how much the parts of the metadata hold. A part that does
// not hold more than in the previous metadata is not checked: an earlier version accepted
// more.
func validateMetadataSize(meta, previous *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct {
		child, hint string
		bytes       func(*metav1.ObjectMeta) int
		bound       int
	}{
		{"labels", "remove some, or write annotations instead", labelsBytes, maxLabelsBytes},
		{"ownerReferences", "remove some", ownerReferencesBytes, maxOwnerReferencesBytes},
		{"finalizers", "remove some", finalizersBytes, maxFinalizersBytes},
		{"managedFields", "write with fewer field managers, or empty it with [{}]", managedFieldsBytes, maxManagedFieldsBytes},
	} {
		if size := part.bytes(meta); size > max(part.bound, part.bytes(previous)) {
			errs = append(errs, field.Invalid(path.Child(part.child), fmt.Sprintf("%d bytes", size), fmt.Sprintf("may have %d bytes together: %s", part.bound, part.hint)))
		}
	}
	return errs
}

func labelsBytes(meta *metav1.ObjectMeta) int {
	size := 0
	for key, value := range meta.Labels {
		size += len(key) + len(value)
	}
	return size
}

func ownerReferencesBytes(meta *metav1.ObjectMeta) int {
	size := 0
	for i := range meta.OwnerReferences {
		size += meta.OwnerReferences[i].Size()
	}
	return size
}

func finalizersBytes(meta *metav1.ObjectMeta) int {
	size := 0
	for _, finalizer := range meta.Finalizers {
		size += len(finalizer)
	}
	return size
}

func managedFieldsBytes(meta *metav1.ObjectMeta) int {
	size := 0
	for i := range meta.ManagedFields {
		size += meta.ManagedFields[i].Size()
	}
	return size
}

// validateSize checks how much the parts of a spec hold. A part that is as in the previous
// spec, which may be nil, is not checked: an earlier version accepted more, and the rest
// of such a spec can still be changed.
func validateSize(spec, previous *elasti.ElastiServiceSpec, path *field.Path) field.ErrorList {
	if previous == nil {
		previous = &elasti.ElastiServiceSpec{}
	}
	var errs field.ErrorList
	check := func(child, what string, size, bound int) {
		if size > bound {
			errs = append(errs, field.Invalid(path.Child(child), fmt.Sprintf("%d bytes", size), fmt.Sprintf("%s may have %d bytes together: shorten them", what, bound)))
		}
	}
	if !apiequality.Semantic.DeepEqual(spec.ProbeResponse, previous.ProbeResponse) {
		bodies, matchers := probeResponseBytes(spec.ProbeResponse)
		check("probeResponse", "the bodies of all responses", bodies, maxResponseBodiesBytes)
		check("probeResponse", "the methods, paths, headers and query parameters of all rules", matchers, maxMatchersBytes)
	}
	if !apiequality.Semantic.DeepEqual(spec.Triggers, previous.Triggers) {
		size := 0
		for i := range spec.Triggers {
			if metadata := spec.Triggers[i].Metadata; metadata != nil {
				size += len(metadata.Raw)
			}
		}
		check("triggers", "the metadata of all triggers", size, maxMetadataBytes)
	}
	if period := spec.EnabledPeriod; period != nil && !apiequality.Semantic.DeepEqual(period, previous.EnabledPeriod) {
		// The schedule has a bound of its own. A duration may have any number of zeros.
		check("enabledPeriod", "duration and timeZone", len(period.Duration)+len(period.TimeZone), maxPeriodBytes)
	}
	return errs
}

// probeResponseBytes returns the size of the bodies of all responses, and that of what
// requests are matched with. A body that is too long by itself counts as the longest.
func probeResponseBytes(rules []elasti.ProbeResponseRule) (bodies, matchers int) {
	for i := range rules {
		rule := &rules[i]
		bodies += min(len(rule.Response.Body), maxResponseBodyBytes)
		matchers += len(rule.Method)
		if rule.Path != nil {
			matchers += len(rule.Path.Value)
		}
		for _, list := range [][]elasti.ValueMatch{rule.Headers, rule.QueryParams} {
			for _, matcher := range list {
				matchers += len(matcher.Name) + len(matcher.Value)
			}
		}
	}
	return bodies, matchers
}
