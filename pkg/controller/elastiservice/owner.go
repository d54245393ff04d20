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

package elastiservice

import (
	"cmp"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// owningElastiService returns the ElastiService that owns the Service which all of
// claimants name: the oldest one. It is nil without claimants.
func owningElastiService(claimants []*v1alpha1.ElastiService) *v1alpha1.ElastiService {
	var first *v1alpha1.ElastiService
	for _, claimant := range claimants {
		if first == nil || older(claimant, first) < 0 {
			first = claimant
		}
	}
	return first
}

// older compares by age; names decide between those of the same second.
func older(one, other *v1alpha1.ElastiService) int {
	return cmp.Or(
		one.CreationTimestamp.Compare(other.CreationTimestamp.Time),
		cmp.Compare(one.Namespace, other.Namespace),
		cmp.Compare(one.Name, other.Name),
	)
}
