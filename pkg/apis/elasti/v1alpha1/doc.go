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

// Package v1alpha1 is the v1alpha1 version of the elasti.truefoundry.com API,
// compatible with the ElastiService manifests written for KubeElasti.
//
// It knows nothing of what acts on the objects. Begin with ElastiService, and with
// reasons.go for what conditions say.
//
// +k8s:openapi-gen=true
// +k8s:deepcopy-gen=package
// +k8s:conversion-gen=github.com/truefoundry/elasti-apiserver/pkg/apis/elasti
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-model-package=com.github.truefoundry.elasti-apiserver.pkg.apis.elasti.v1alpha1
// +groupName=elasti.truefoundry.com
package v1alpha1
