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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// WakeRequest wakes the target of an ElastiService. It is created at the wake
// subresource of the ElastiService and is not stored. The response comes as soon
// as the target's scale is set: to wait for pods, watch the ElastiService. An
// empty body is the same as {}.
type WakeRequest struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is filled in by the server.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the reason and the size of the wake.
	// +optional
	Spec WakeRequestSpec `json:"spec,omitempty"`
	// status is the result of the request. Filled in by the server.
	// +optional
	Status WakeRequestStatus `json:"status,omitempty"`
}

// WakeRequestSpec is the reason and the size of a wake.
type WakeRequestSpec struct {
	// reason is why the target is needed, for audit logs and Events. At most
	// 256 bytes.
	// +optional
	Reason string `json:"reason,omitempty"`
	// pending is how many requests and connections the caller holds.
	// +optional
	Pending int32 `json:"pending,omitempty"`
	// replicas is the least number of replicas to scale to. Defaults to the
	// ElastiService's minTargetReplicas. A target is never scaled down by it.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
}

// WakeRequestStatus is the result of a wake request.
type WakeRequestStatus struct {
	// replicas is the number of replicas in the spec of the target's scale.
	Replicas int32 `json:"replicas"`
	// readyReplicas is the number of the target's pods that were last seen ready.
	ReadyReplicas int32 `json:"readyReplicas"`
	// scaled is true when this request changed the scale of the target.
	Scaled bool `json:"scaled"`
	// mode is the mode of the ElastiService as last observed.
	// +optional
	Mode Mode `json:"mode,omitempty"`
}
