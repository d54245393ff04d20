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

package options

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// enforceResourceQuotas adds the admission plugin that enforces
// count/elastiservices.elasti.truefoundry.com of the ResourceQuotas of the host
// cluster. The host counts ElastiServices, and only this server can reject them.
func enforceResourceQuotas(recommended *genericoptions.RecommendedOptions) {
	resourcequota.Register(recommended.Admission.Plugins)
	// Last, so that what another plugin rejects is not charged.
	recommended.Admission.RecommendedPluginOrder = append(recommended.Admission.RecommendedPluginOrder, resourcequota.PluginName)
	recommended.ExtraAdmissionInitializers = func(*genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
		return []admission.PluginInitializer{quotaInitializer{}}, nil
	}
}

// quotaInitializer configures the plugin without evaluators: it counts objects by
// itself.
type quotaInitializer struct{}

func (quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration(nil, nil))
	}
}
