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
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPortClaim assigns a proxy port to one port of the public Service of one
// ElastiService. It is stored by the server and not part of its API. Its name is
// the number of the proxy port and it has no namespace, so that a proxy port has
// one owner however many servers assign ports at the same time. A claim is created
// and deleted, never changed.
//
// +k8s:openapi-gen=false
type ProxyPortClaim struct {
	metav1.TypeMeta `json:",inline"`
	// metadata has the number of the proxy port as name.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec has the proxy port and its owner.
	Spec ProxyPortClaimSpec `json:"spec"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPortClaimList is a list of ProxyPortClaims.
//
// +k8s:openapi-gen=false
type ProxyPortClaimList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the ProxyPortClaims of the list.
	Items []ProxyPortClaim `json:"items"`
}

// ProxyPortClaimSpec is a proxy port and its owner.
//
// +k8s:openapi-gen=false
type ProxyPortClaimSpec struct {
	// proxyPort is the port that resolvers listen on. 1 to 65535.
	ProxyPort int32 `json:"proxyPort"`
	// port is the port number of the public Service.
	Port int32 `json:"port"`
	// owner is the ElastiService that has the proxy port.
	Owner ProxyPortOwner `json:"owner"`
}

// ProxyPortOwner is the ElastiService that has a proxy port.
//
// +k8s:openapi-gen=false
type ProxyPortOwner struct {
	// namespace is the namespace of the ElastiService.
	Namespace string `json:"namespace"`
	// name is the name of the ElastiService.
	Name string `json:"name"`
	// uid tells it from others that had or will have its name.
	UID types.UID `json:"uid"`
}
