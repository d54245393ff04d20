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

package app

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// admissionregistration is the version that the admission plugins read their
// configuration in.
const admissionregistration = "admissionregistration.k8s.io/v1"

// disableUnservedAdmission switches off the admission plugins whose
// configuration the host cluster does not serve: they would wait for it for
// ever and reject every write. Missing permissions never switch one off.
func disableUnservedAdmission(logger klog.Logger, options *genericoptions.AdmissionOptions, host discovery.DiscoveryInterface) error {
	resources, err := host.ServerResourcesForGroupVersion(admissionregistration)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("discovering which admission configuration the host cluster serves: %w", err)
	}
	served := map[string]bool{}
	if resources != nil {
		for _, resource := range resources.APIResources {
			served[resource.Name] = true
		}
	}
	for _, plugin := range []struct{ name, resource string }{
		{validatingpolicy.PluginName, "validatingadmissionpolicies"},
		{mutatingpolicy.PluginName, "mutatingadmissionpolicies"},
	} {
		if served[plugin.resource] {
			continue
		}
		logger.Info("Admission plugin is switched off, the host cluster does not serve its configuration", "plugin", plugin.name, "apiVersion", admissionregistration, "resource", plugin.resource)
		options.DisablePlugins = append(options.DisablePlugins, plugin.name)
	}
	return nil
}

// enforceResourceQuotas configures the admission plugin that enforces
// count/elastiservices.elasti.truefoundry.com of the ResourceQuotas of the host cluster.
func enforceResourceQuotas(recommended *genericoptions.RecommendedOptions) {
	recommended.ExtraAdmissionInitializers = func(*genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
		return []admission.PluginInitializer{quotaInitializer{}}, nil
	}
}

// quotaInitializer configures the plugin without evaluators: it counts objects by
// itself.
type quotaInitializer struct{}

// Initialize implements admission.PluginInitializer.
func (quotaInitializer) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(generic.NewConfiguration(nil, nil))
	}
}
