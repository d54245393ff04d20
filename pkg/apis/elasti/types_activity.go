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

package elasti

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ActivityReport is the traffic of an ElastiService that one resolver sees. It is
// created at the activity subresource of the ElastiService and is not stored;
// what is new in it goes into status.activity and status.lastActivityTime. It
// has ages and not times, so that the clocks of resolvers do not matter.
type ActivityReport struct {
	metav1.TypeMeta
	// metadata is filled in by the server.
	metav1.ObjectMeta

	// spec is what the resolver sees.
	Spec ActivityReportSpec
}

// ActivityReportSpec is what a resolver sees.
type ActivityReportSpec struct {
	// resolver is the name of the resolver's pod. Required.
	Resolver string
	// open is how many requests and connections are being held or forwarded.
	// HTTP connections without a request are not among them.
	Open int32
	// observedMilliseconds is for how long the resolver has observed the
	// traffic of this ElastiService without a gap. At most 31536000000 (a year).
	ObservedMilliseconds int64
	// lastRequestAgeMilliseconds is how long ago the last request or connection
	// began or ended. At most observedMilliseconds. Unset when there was none.
	LastRequestAgeMilliseconds *int64
}

// ResolverActivity is what one resolver has reported.
type ResolverActivity struct {
	// resolver is the name of the resolver's pod.
	Resolver string
	// reportTime is when the resolver last reported.
	ReportTime metav1.MicroTime
	// observedSince is since when the resolver has observed the traffic
	// without a gap.
	ObservedSince metav1.MicroTime
	// open is how many requests and connections it was holding or forwarding.
	Open int32
	// lastRequestTime is when the last request or connection began or ended.
	// Unset when there was none since observedSince.
	LastRequestTime *metav1.MicroTime
}
