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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	elastiservicecontroller "github.com/truefoundry/elasti-apiserver/pkg/controller/elastiservice"
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

// signingKeySecret is the name of the Secret with the key that signs the objects that the
// controller makes. The Secret is created when it does not exist.
const signingKeySecret = "elasti-apiserver-signing-key"

// controllerDependencies is what the controller is made of beside its flags.
type controllerDependencies struct {
	host     *rest.Config
	loopback *rest.Config
	// registry reads and changes the server's own objects.
	registry  apiserver.Registry
	namespace string
	scaling   *scaling.Client
	recorder  events.EventRecorder
	metrics   *Metrics
	// port is what this server listens on.
	port int
	// shared is true when other replicas work on the same objects.
	shared bool
}

// newController makes the controller. With several replicas, only the leader runs it.
func newController(o *options.Controller, dependencies controllerDependencies) (apiserver.Runner, error) {
	host, err := kubernetes.NewForConfig(dependencies.host)
	if err != nil {
		return nil, fmt.Errorf("creating the controller's client for the host cluster: %w", err)
	}
	signers := &signature.Source{Secrets: host.CoreV1().Secrets(dependencies.namespace), Name: signingKeySecret, Clock: clock.RealClock{}}
	terms, err := newTerm(o, dependencies, host, signers)
	if err != nil {
		return nil, err
	}
	controller, err := whileInstalled(o, dependencies, host, signers, terms)
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
	t.sleep.Resolvers = resolvers
	targetKeys := &resources.TargetKeys{}
	t.sleep.TargetKeys, t.options.TargetKeys = targetKeys, targetKeys
	scheduler, err := sleep.New(t.sleep)
	if err != nil {
		return err
	}
	t.options.Changed, t.options.ConfirmIdle = scheduler.Changed, scheduler.ConfirmIdle
	t.options.ScaledUp, t.options.Woken, t.options.SleepFailed = scheduler.ScaledUp, scheduler.Woken, scheduler.SleepFailed
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

func newTerm(o *options.Controller, dependencies controllerDependencies, host kubernetes.Interface, signers *signature.Source) (term, error) {
	own, err := versioned.NewForConfig(dependencies.loopback)
	if err != nil {
		return term{}, fmt.Errorf("creating the client for the server's own objects: %w", err)
	}
	hostDynamic, err := dynamic.NewForConfig(dependencies.host)
	if err != nil {
		return term{}, fmt.Errorf("creating the controller's client for targets: %w", err)
	}
	assembled := controllerOptions(o, dependencies.namespace)
	assembled.Elasti = own
	assembled.Statuses = dependencies.registry.StatusWriter
	assembled.Claims = dependencies.registry.ProxyPorts
	assembled.Reader = dependencies.registry.Reader
	assembled.Host = host
	assembled.HostDynamic = hostDynamic
	assembled.Scaling = dependencies.scaling
	assembled.DialResolver = (&net.Dialer{}).DialContext
	assembled.OthersWake = dependencies.shared
	assembled.Recorder = dependencies.recorder
	assembled.Metrics = dependencies.metrics.controller
	assembled.InformerMetrics = dependencies.metrics.informers
	return term{sleep: sleepOptions(&o.Sleep, dependencies, own, host), signers: signers, options: assembled}, nil
}

// controllerOptions returns the options of the controller that follow from the flags, and from
// the namespace of the server.
func controllerOptions(o *options.Controller, namespace string) elastiservicecontroller.Options {
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
