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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/leader"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/sleep/evaluators"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// signingKeySecret is the Secret with the key that the objects are signed with
// that the controller makes. It is created when it does not exist.
const signingKeySecret = "elasti-apiserver-signing-key"

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
		"How long the resolvers are in the path of the traffic before a target is scaled to zero, so that nodes and ingresses have heard of them. spec.proxy.convergenceSeconds overrides it.")
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

// controllerDependencies is what the controller is made of beside its flags.
type controllerDependencies struct {
	host     *rest.Config
	loopback *rest.Config
	// registry reads and changes the server's own objects.
	registry  apiserver.Registry
	namespace string
	scaling   *scaling.Client
	recorder  events.EventRecorder
	// port is what this server listens on.
	port int
	// shared is true when other replicas work on the same objects.
	shared bool
}

// build makes the controller. Where replicas share their objects it works on
// one of them at a time.
func (o *Controller) build(dependencies controllerDependencies) (apiserver.Runner, error) {
	host, err := kubernetes.NewForConfig(dependencies.host)
	if err != nil {
		return nil, fmt.Errorf("making the controller's client for the host cluster: %w", err)
	}
	signers := &signature.Source{Secrets: host.CoreV1().Secrets(dependencies.namespace), Name: signingKeySecret, Clock: clock.RealClock{}}
	terms, err := o.newTerm(dependencies, host, signers)
	if err != nil {
		return nil, err
	}
	controller, err := o.whileInstalled(dependencies, host, signers, terms)
	if err != nil {
		return nil, err
	}
	if !dependencies.shared {
		return controller, nil
	}
	identity, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("finding the name of this replica: %w", err)
	}
	return leader.New(leader.Options{
		Leases:    host.CoordinationV1(),
		Namespace: dependencies.namespace,
		Identity:  identity,
		Run:       controller.Run,
	})
}

// term is one leadership. A controller runs once, so each term makes its own.
type term struct {
	options elastiservicecontroller.Options
	sleep   sleep.Options
	signers *signature.Source
}

// Run makes a controller and the scheduler that decides when targets sleep,
// and runs them until ctx ends.
func (t term) Run(ctx context.Context) error {
	signer, err := t.signers.Await(ctx)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("waiting for the key that objects are signed with: %w", err)
	}
	t.options.Signer = signer
	resolvers := &evaluators.Resolvers{}
	t.sleep.Evaluators = maps.Clone(t.sleep.Evaluators)
	t.sleep.Evaluators[triggers.TypeTraffic] = evaluators.NewTraffic(resolvers, clock.RealClock{})
	targetKeys := &resources.TargetKeys{}
	t.sleep.TargetKeys, t.options.TargetKeys = targetKeys, targetKeys
	scheduler, err := sleep.New(t.sleep)
	if err != nil {
		return err
	}
	t.options.Changed, t.options.ConfirmIdle = scheduler.Changed, scheduler.ConfirmIdle
	t.options.ScaledUp, t.options.Woken = scheduler.ScaledUp, scheduler.Woken
	t.options.Requests = func(key types.NamespacedName, requests target.PodRequests) {
		scheduler.Requests(key, requests.CPUCores, requests.MemoryBytes)
	}
	t.options.ResolversChanged = resolvers.Set
	controller, err := elastiservicecontroller.New(t.options)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return scheduler.Run(ctx) })
	group.Go(func() error { return controller.Run(ctx) })
	return group.Wait()
}

func (o *Controller) newTerm(dependencies controllerDependencies, host kubernetes.Interface, signers *signature.Source) (term, error) {
	own, err := versioned.NewForConfig(dependencies.loopback)
	if err != nil {
		return term{}, fmt.Errorf("making the client for the server's own objects: %w", err)
	}
	hostDynamic, err := dynamic.NewForConfig(dependencies.host)
	if err != nil {
		return term{}, fmt.Errorf("making the controller's client for targets: %w", err)
	}
	options := o.flagged(dependencies.namespace)
	options.Elasti = own
	options.Statuses = dependencies.registry.StatusWriter
	options.Claims = dependencies.registry.ProxyPorts
	options.Reader = dependencies.registry.Reader
	options.Host = host
	options.HostDynamic = hostDynamic
	options.Scaling = dependencies.scaling
	options.DialResolver = (&net.Dialer{}).DialContext
	options.OthersWake = dependencies.shared
	options.Recorder = dependencies.recorder
	options.Metrics = elastiservicecontroller.NewMetrics(legacyregistry.Registerer())
	options.InformerMetrics = informers.NewMetrics(legacyregistry.Registerer())
	return term{sleep: o.Sleep.options(dependencies, own, host), signers: signers, options: options}, nil
}

// flagged returns the options of the controller that follow from the flags, and from
// the namespace of the server.
func (o *Controller) flagged(namespace string) elastiservicecontroller.Options {
	return elastiservicecontroller.Options{
		Namespaces:        o.Namespaces,
		WakeRate:          o.WakeRate,
		ConvergenceTime:   o.ConvergenceTime,
		ResolverNamespace: cmp.Or(o.ResolverNamespace, namespace),
		ResolverService:   o.ResolverService,
		ProxyPortRange:    o.ProxyPorts,
		SharedProxyPort:   o.SharedHTTPPort,
	}
}
