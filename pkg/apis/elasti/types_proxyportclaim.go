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
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPortClaim assigns a proxy port to one port of the public Service of one
// ElastiService. It is stored by the server and not part of its API. Its name is
// the number of the proxy port and it has no namespace, so that a proxy port has
// one owner however many servers assign ports at the same time. A claim is created
// and deleted, never changed.
type ProxyPortClaim struct {
	metav1.TypeMeta
	// metadata has the number of the proxy port as name.
	metav1.ObjectMeta

	// spec has the proxy port and its owner.
	Spec ProxyPortClaimSpec
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ProxyPortClaimList is a list of ProxyPortClaims.
type ProxyPortClaimList struct {
	metav1.TypeMeta
	// metadata is the standard list metadata.
	metav1.ListMeta

	// items are the ProxyPortClaims of the list.
	Items []ProxyPortClaim
}

// ProxyPortClaimSpec is a proxy port and its owner.
type ProxyPortClaimSpec struct {
	// proxyPort is the port that resolvers listen on. 1 to 65535.
	ProxyPort int32
	// port is the port number of the public Service.
	Port int32
	// owner is the ElastiService that has the proxy port.
	Owner ProxyPortOwner
}

// ProxyPortOwner is the ElastiService that has a proxy port.
type ProxyPortOwner struct {
	// namespace is the namespace of the ElastiService.
	Namespace string
	// name is the name of the ElastiService.
	Name string
	// uid tells it from others that had or will have its name.
	UID types.UID
}
