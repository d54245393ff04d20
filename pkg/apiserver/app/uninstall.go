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
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/uninstall"
)

// installationName is the name of the server's Deployment, ServiceAccount,
// ClusterRole and ClusterRoleBinding.
const installationName = "elasti-apiserver"

// whileInstalled runs the controller until the product is deleted from the cluster,
// and then restores the cluster.
func whileInstalled(o *options.Controller, dependencies controllerDependencies, host kubernetes.Interface, signers *signature.Source, controller apiserver.Runner) (*uninstall.Runner, error) {
	teardown := &elastiservicecontroller.Teardown{
		Host:       host,
		Scaling:    dependencies.scaling,
		Signers:    signers,
		Namespaces: o.Namespaces,
		Clock:      clock.RealClock{},
	}
	config := rest.CopyConfig(dependencies.host)
	config.Wrap(uninstall.Transport)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client that observes the installation: %w", err)
	}
	return uninstall.New(uninstall.Options{
		Host:      client,
		Namespace: dependencies.namespace,
		Name:      installationName,
		// Set where the ServiceAccount has another name than the rest.
		ServiceAccount: os.Getenv("POD_SERVICE_ACCOUNT"),
		Run:            controller.Run,
		Teardown:       teardown.Run,
	})
}
