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

// WakeRequest asks for the target of an ElastiService to be awake. It is
// created at the wake subresource of the ElastiService, is not stored, and is
// answered as soon as the target's scale is set: whoever wants to wait for
// pods watches the ElastiService. An empty body is the same as {}.
type WakeRequest struct {
	metav1.TypeMeta
	// metadata is filled in by the server.
	metav1.ObjectMeta

	// spec is why and how far to wake.
	Spec WakeRequestSpec
	// status is what the request did. Filled in by the server.
	Status WakeRequestStatus
}

// WakeRequestSpec is why and how far to wake.
type WakeRequestSpec struct {
	// reason is why the target is needed, for audit logs and Events. At most
	// 256 bytes.
	Reason string
	// pending is how many requests and connections the caller holds.
	Pending int32
	// replicas is the least number of replicas that is wanted. Defaults to the
	// ElastiService's minTargetReplicas. A target is never scaled down by it.
	Replicas *int32
}

// WakeRequestStatus is what a wake request did.
type WakeRequestStatus struct {
	// replicas is the number of replicas that the target's scale asks for now.
	Replicas int32
	// readyReplicas is the number of the target's pods that were last seen ready.
	ReadyReplicas int32
	// scaled is true when this request changed the scale of the target.
	Scaled bool
	// mode is the mode of the ElastiService as last observed.
	Mode Mode
}
