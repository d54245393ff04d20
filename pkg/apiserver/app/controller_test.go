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
	"reflect"
	"testing"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
)

// A flag that reaches nothing changes nothing.
func TestFlagsReachTheController(t *testing.T) {
	o := options.New()
	flags := pflag.NewFlagSet("elasti-apiserver", pflag.ContinueOnError)
	o.Controller.AddFlags(flags)
	if err := flags.Parse([]string{"--namespaces=shop,bank", "--wake-rate=3", "--convergence-time=7s",
		"--resolver-service=resolver", "--proxy-port-range=20000-20999", "--shared-http-port=8012"}); err != nil {
		t.Fatal(err)
	}
	want := elastiservicecontroller.Options{
		Namespaces: []string{"shop", "bank"}, WakeRate: 3, ConvergenceTime: 7 * time.Second, ResolverNamespace: "elasti-system",
		ResolverService: "resolver", ProxyPortRange: utilnet.PortRange{Base: 20000, Size: 1000}, SharedProxyPort: 8012,
	}
	if got := controllerOptions(&o.Controller, "elasti-system"); !reflect.DeepEqual(got, want) {
		t.Errorf("the controller gets %+v, want %+v", got, want)
	}
	o.Controller.ResolverNamespace = "elsewhere"
	if got := controllerOptions(&o.Controller, "elasti-system").ResolverNamespace; got != "elsewhere" {
		t.Errorf("the namespace of the resolvers is %s", got)
	}
}
