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
	"fmt"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
)

// Bounds of --convergence-time, those of spec.proxy.convergenceSeconds.
const (
	minConvergenceTime = time.Second
	maxConvergenceTime = 10 * time.Minute
)

// Controller are the flags of the controller.
type Controller struct {
	// ResolverNamespace and ResolverService name the Service of the resolvers.
	ResolverNamespace string
	ResolverService   string
	// ProxyPorts is the range that proxy ports are taken from.
	ProxyPorts utilnet.PortRange
	// SharedHTTPPort is the port of the resolvers for Services that find no
	// free proxy port. Zero means that there is none.
	SharedHTTPPort int32
	// Namespaces are the namespaces that are worked on. Empty means all.
	Namespaces []string
	// ConvergenceTime is how long resolvers are in the path of the traffic
	// before a target is scaled to zero.
	ConvergenceTime time.Duration
	// WakeRate is how many targets are woken a second while no resolver is ready, or
	// whose ElastiServices the store has lost.
	WakeRate float64
	// Sleep says when targets sleep.
	Sleep Sleep
}

func newController() Controller {
	return Controller{
		ResolverService: "elasti-resolver",
		// Above the well-known ports, below node ports and the ports that
		// Linux gives to outgoing connections.
		ProxyPorts:      utilnet.PortRange{Base: 10000, Size: 20000},
		WakeRate:        elastiservicecontroller.DefaultWakeRate,
		ConvergenceTime: elastiservicecontroller.DefaultConvergenceTime,
		Sleep:           newSleep(),
	}
}

// AddFlags adds the flags of the controller.
func (o *Controller) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.ResolverNamespace, "resolver-namespace", o.ResolverNamespace,
		"The namespace of the resolvers. Defaults to --namespace.")
	flags.StringVar(&o.ResolverService, "resolver-service", o.ResolverService,
		"The Service whose ready endpoints are the resolvers.")
	flags.StringSliceVar(&o.Namespaces, "namespaces", o.Namespaces,
		"The namespaces whose ElastiServices are worked on. Defaults to all.")
	flags.Var(&o.ProxyPorts, "proxy-port-range",
		"The ports on the resolvers that are given to ports of Services, such as 10000-29999. A range that shrinks must still hold the ports that are in use.")
	flags.Int32Var(&o.SharedHTTPPort, "shared-http-port", o.SharedHTTPPort,
		"The --shared-http-port of the resolvers, where Services without a free proxy port are distinguished by host name. 0: there is none.")
	flags.Float64Var(&o.WakeRate, "wake-rate", o.WakeRate,
		"How many sleeping targets are woken a second when no resolver has been ready for a while to hold their traffic, or when the store has lost their ElastiServices.")
	flags.DurationVar(&o.ConvergenceTime, "convergence-time", o.ConvergenceTime,
		"How long the resolvers are in the path of the traffic before a target is scaled to zero, so that nodes and ingresses have observed them. spec.proxy.convergenceSeconds overrides it.")
	o.Sleep.AddFlags(flags)
}

// Validate checks the flags.
func (o *Controller) Validate() []error {
	errs := o.Sleep.Validate()
	if o.ProxyPorts.Size == 0 || o.ProxyPorts.Base < 1024 {
		errs = append(errs, fmt.Errorf("--proxy-port-range is %s, but must be ports from 1024 to 65535", o.ProxyPorts.String()))
	}
	if o.WakeRate <= 0 {
		errs = append(errs, fmt.Errorf("--wake-rate is %v, but must be more than 0", o.WakeRate))
	}
	if port := int(o.SharedHTTPPort); port < 0 || port > 65535 || port > 0 && o.ProxyPorts.Contains(port) {
		errs = append(errs, fmt.Errorf("--shared-http-port is %d, but must be a port outside of --proxy-port-range (%s), or 0", port, o.ProxyPorts.String()))
	}
	if o.ConvergenceTime < minConvergenceTime || o.ConvergenceTime > maxConvergenceTime {
		errs = append(errs, fmt.Errorf("--convergence-time is %s, but must be from %s to %s", o.ConvergenceTime, minConvergenceTime, maxConvergenceTime))
	}
	return errs
}
