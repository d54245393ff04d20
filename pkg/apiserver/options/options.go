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

// Package options turns command line flags into a running API server.
package options

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/authentication"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/authorization"
	generatedopenapi "github.com/truefoundry/elasti-apiserver/pkg/generated/openapi"
	"github.com/truefoundry/elasti-apiserver/pkg/preflight"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// defaultEtcdPrefix keeps our objects apart from others in a shared etcd.
const defaultEtcdPrefix = "/registry/elasti.truefoundry.com"

// The server's own requests to the host cluster are bounded by the host's
// priority and fairness; these limits only keep a defect from becoming a flood.
const (
	hostQPS   = 2000
	hostBurst = 4000
)

// watchShutdownGracePeriod bounds how long a server that shuts down takes to
// end its watches, a few at a time so that clients do not come back at once.
const watchShutdownGracePeriod = 5 * time.Second

// authorizationCacheTTL is how long a decision of the host about what a caller may do
// is cached.
const authorizationCacheTTL = 10 * time.Second

// Options are the flags of elasti-apiserver.
type Options struct {
	ServerRun          *genericoptions.ServerRunOptions
	Recommended        *genericoptions.RecommendedOptions
	Logging            *logsapi.LoggingConfiguration
	Storage            Storage
	ServingCertificate ServingCertificate
	Controller         Controller
}

// New returns the options with their defaults.
func New() *Options {
	recommended := genericoptions.NewRecommendedOptions(defaultEtcdPrefix, apiserver.Codecs.LegacyCodec(v1alpha1.SchemeGroupVersion))
	recommended.Etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(v1alpha1.SchemeGroupVersion, schema.GroupKind{Group: elasti.GroupName})
	recommended.Etcd.DefaultStorageMediaType = runtime.ContentTypeJSON
	// Each deletion waits for the disk, so one after the other is slow.
	recommended.Etcd.DeleteCollectionWorkers = 16
	// A port above 1023 needs no capability.
	recommended.SecureServing.BindPort = 8443
	// Nothing is written outside of the data directory.
	recommended.SecureServing.ServerCert.CertDirectory = ""
	recommended.SecureServing.ServerCert.PairName = ""
	enforceResourceQuotas(recommended)
	// A kubelet requests these without credentials.
	recommended.Authorization.AlwaysAllowPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"}
	// A permission that was revoked is effective for that long. It decides which users
	// may have a Secret used by a trigger, which the host does not check otherwise.
	recommended.Authorization.AllowCacheTTL = authorizationCacheTTL
	recommended.Authorization.DenyCacheTTL = authorizationCacheTTL
	serverRun := genericoptions.NewServerRunOptions()
	// Without it, open watches would hold up a shutdown for a minute.
	serverRun.ShutdownWatchTerminationGracePeriod = watchShutdownGracePeriod
	return &Options{
		ServerRun:          serverRun,
		Recommended:        recommended,
		Logging:            logsapi.NewLoggingConfiguration(),
		ServingCertificate: newServingCertificate(),
		Controller:         newController(),
	}
}

// Flags returns the flags in the sections that --help shows.
func (o *Options) Flags() *cliflag.NamedFlagSets {
	sections := &cliflag.NamedFlagSets{}
	storage := sections.FlagSet("storage")
	o.Storage.AddFlags(storage)
	storage.AddFlagSet(without(o.Recommended.Etcd.AddFlags, "storage-backend", "storage-media-type", "etcd-servers-overrides"))
	o.Controller.AddFlags(sections.FlagSet("controller"))
	serving := sections.FlagSet("serving")
	o.ServingCertificate.AddFlags(serving)
	o.Recommended.SecureServing.AddFlags(serving)
	o.ServerRun.AddUniversalFlags(serving)
	host := sections.FlagSet("host cluster")
	o.Recommended.CoreAPI.AddFlags(host)
	o.Recommended.EgressSelector.AddFlags(host)
	o.Recommended.Authentication.AddFlags(sections.FlagSet("authentication"))
	o.Recommended.Authorization.AddFlags(sections.FlagSet("authorization"))
	o.Recommended.Admission.AddFlags(sections.FlagSet("admission"))
	o.Recommended.Audit.AddFlags(sections.FlagSet("auditing"))
	o.Recommended.Features.AddFlags(sections.FlagSet("features"))
	o.Recommended.Traces.AddFlags(sections.FlagSet("traces"))
	logsapi.AddFlags(o.Logging, sections.FlagSet("logs"))
	return sections
}

// without returns the flags that add adds, less the named ones: those that the
// generic server has, but that change nothing in this one.
func without(add func(*pflag.FlagSet), names ...string) *pflag.FlagSet {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	add(all)
	kept := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains(names, flag.Name) {
			kept.AddFlag(flag)
		}
	})
	return kept
}

// Complete derives what was not given from what was.
func (o *Options) Complete() error {
	// Feature gates have their values only from here on.
	if err := o.ServerRun.ComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("setting the feature gates: %w", err)
	}
	if err := o.ServerRun.Complete(); err != nil {
		return fmt.Errorf("completing the server options: %w", err)
	}
	o.Storage.Complete(o.Recommended.Etcd)
	o.ServingCertificate.Complete(o.Recommended.SecureServing.SecureServingOptions)
	// One kubeconfig is enough for all requests to the host cluster.
	kubeconfig := o.Recommended.CoreAPI.CoreAPIKubeconfigPath
	if o.Recommended.Authentication.RemoteKubeConfigFile == "" {
		o.Recommended.Authentication.RemoteKubeConfigFile = kubeconfig
	}
	if o.Recommended.Authorization.RemoteKubeConfigFile == "" {
		o.Recommended.Authorization.RemoteKubeConfigFile = kubeconfig
	}
	return nil
}

// Validate checks the options. Each error names the flag.
func (o *Options) Validate() error {
	errs := o.Storage.Validate(o.Recommended.Etcd)
	errs = append(errs, o.ServingCertificate.Validate(o.Recommended.SecureServing.SecureServingOptions)...)
	errs = append(errs, o.Controller.Validate()...)
	errs = append(errs, o.ServerRun.Validate()...)
	errs = append(errs, o.validateRecommended()...)
	return utilerrors.NewAggregate(errs)
}

// validateRecommended leaves out the etcd servers, which an embedded store
// has only once it runs; Storage.Validate has checked them.
func (o *Options) validateRecommended() []error {
	withServers := *o.Recommended
	etcd := *o.Recommended.Etcd
	etcd.StorageConfig.Transport.ServerList = []string{"checked-by-storage-options"}
	withServers.Etcd = &etcd
	return withServers.Validate()
}

// Run starts the server and returns when ctx ends, or when something that it
// cannot be without has failed.
func (o *Options) Run(ctx context.Context) (err error) {
	if err := o.applyLogging(); err != nil {
		return err
	}
	defer logs.FlushLogs()
	limitGarbage()
	host, err := o.hostConfig()
	if err != nil {
		return err
	}
	store, err := o.Storage.start(ctx, o.Recommended.Etcd, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()

	server, recorder, err := o.newServer(ctx, host, store)
	if err != nil {
		return err
	}
	return server.Run(ctx, store.wait, recorder)
}

// applyLogging sets up logging. Its feature gates are apart from those of the
// server, whose registry is shared by the whole process.
func (o *Options) applyLogging() error {
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		return fmt.Errorf("preparing logging: %w", err)
	}
	if err := logsapi.ValidateAndApply(o.Logging, gates); err != nil {
		return fmt.Errorf("setting up logging: %w", err)
	}
	return nil
}

// hostConfig returns how to reach the cluster that this server is part of.
func (o *Options) hostConfig() (*rest.Config, error) {
	kubeconfig := o.Recommended.CoreAPI.CoreAPIKubeconfigPath
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("reaching the host cluster from inside a pod (outside of one, give --kubeconfig): %w", err)
		}
		return limited(config), nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading --kubeconfig %s: %w", kubeconfig, err)
	}
	return limited(config), nil
}

func limited(config *rest.Config) *rest.Config {
	config.QPS, config.Burst = hostQPS, hostBurst
	// The network inside a cluster is faster than compression.
	config.DisableCompression = true
	return rest.AddUserAgent(config, "elasti-apiserver")
}

// newServer assembles the server. The second result records Events until its
// context ends.
func (o *Options) newServer(ctx context.Context, host *rest.Config, store *backend) (*apiserver.Server, func(context.Context) error, error) {
	logger := klog.FromContext(ctx)
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, nil, fmt.Errorf("making the client for the host cluster: %w", err)
	}
	if err := o.ServingCertificate.applyTo(o.Recommended.SecureServing.SecureServingOptions, host); err != nil {
		return nil, nil, err
	}
	if err := disableUnservedAdmission(logger, o.Recommended.Admission, client.Discovery()); err != nil {
		return nil, nil, err
	}
	generic, err := o.genericConfig()
	if err != nil {
		return nil, nil, err
	}
	notWatched := store.unwatched(generic.RESTOptionsGetter)
	generic.RESTOptionsGetter = store.watched(generic.RESTOptionsGetter)
	if frontProxies := generic.Authentication.RequestHeaderConfig; frontProxies != nil {
		generic.Authentication.Authenticator = authentication.CacheFrontProxies(generic.Authentication.Authenticator, frontProxies, clock.RealClock{})
	}
	// A cached decision about all names of a namespace counts for each of them.
	access := generic.Authorization.Authorizer
	generic.Authorization.Authorizer = authorization.ForAllNames(access)
	scaler, err := scaling.NewClient(scaling.Options{Config: host})
	if err != nil {
		return nil, nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(host)
	if err != nil {
		return nil, nil, fmt.Errorf("making the dynamic client for the host cluster: %w", err)
	}
	// What the controller writes does not leave the process.
	loopback := rest.CopyConfig(generic.LoopbackClientConfig)
	loopback.DisableCompression = true
	broadcaster := events.NewBroadcaster(eventSink{&events.EventSinkImpl{Interface: client.EventsV1()}})
	recorder := newAggregatingRecorder(broadcaster.NewRecorder(apiserver.Scheme, "elasti-apiserver"))
	newController := func(registry apiserver.Registry) (apiserver.Runner, error) {
		return o.Controller.build(controllerDependencies{
			host:      host,
			loopback:  loopback,
			registry:  registry,
			namespace: o.ServingCertificate.Namespace,
			scaling:   scaler,
			recorder:  recorder,
			port:      o.Recommended.SecureServing.BindPort,
			shared:    o.Storage.Backend != StorageEmbedded,
		})
	}
	server, err := apiserver.New(&apiserver.Config{
		Generic: generic,
		Extra: apiserver.ExtraConfig{
			Scaler:              scaler,
			Events:              recorder,
			Warner:              preflight.New(preflight.Options{Kubernetes: client, Dynamic: dynamicClient, Scaling: scaler}),
			Access:              access,
			Namespaces:          o.Controller.Namespaces,
			OnlyWriter:          o.Storage.Backend == StorageEmbedded,
			UncachedRESTOptions: notWatched,
			StorageCheck:        store.check,

			NewController: newController,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return server, recordEvents(broadcaster), nil
}

func (o *Options) genericConfig() (*genericapiserver.RecommendedConfig, error) {
	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	if err := o.ServerRun.ApplyTo(&config.Config); err != nil {
		return nil, fmt.Errorf("applying the server options: %w", err)
	}
	namer := openapi.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "elasti-apiserver"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info.Title = "elasti-apiserver"
	if err := o.Storage.applyTo(config, o.Recommended); err != nil {
		return nil, err
	}
	return config, nil
}
