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

// Package app puts together the process of elasti-apiserver from its flags: storage, the
// API server, the controller that runs in it, and what they need of the host cluster. It
// knows nothing of how an ElastiService is served or reconciled. Begin with Run.
package app

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/authorization"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	generatedopenapi "github.com/truefoundry/elasti-apiserver/pkg/generated/openapi"
	"github.com/truefoundry/elasti-apiserver/pkg/preflight"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// The server's own requests to the host cluster are bounded by the host's
// priority and fairness; these limits only keep a defect from becoming a flood.
const (
	hostQPS   = 2000
	hostBurst = 4000
)

// Run starts the server and returns when ctx ends, or when something that it
// cannot be without has failed.
func Run(ctx context.Context, o *options.Options) (err error) {
	if err := applyLogging(o.Logging); err != nil {
		return err
	}
	defer logs.FlushLogs()
	host, err := hostConfig(o.Recommended.CoreAPI.CoreAPIKubeconfigPath)
	if err != nil {
		return err
	}
	store, err := startBackend(ctx, o, host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.close()) }()

	server, recorder, err := newServer(ctx, o, host, store)
	if err != nil {
		return err
	}
	return server.Run(ctx, store.wait, recorder)
}

// applyLogging sets up logging. Its feature gates are apart from those of the
// server, whose registry is shared by the whole process.
func applyLogging(logging *logsapi.LoggingConfiguration) error {
	gates := featuregate.NewFeatureGate()
	if err := logsapi.AddFeatureGates(gates); err != nil {
		return fmt.Errorf("preparing logging: %w", err)
	}
	if err := logsapi.ValidateAndApply(logging, gates); err != nil {
		return fmt.Errorf("setting up logging: %w", err)
	}
	return nil
}

// hostConfig returns how to reach the cluster that this server is part of.
func hostConfig(kubeconfig string) (*rest.Config, error) {
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
func newServer(ctx context.Context, o *options.Options, host *rest.Config, store *backend) (*apiserver.Server, func(context.Context) error, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the client for the host cluster: %w", err)
	}
	generic, err := genericConfigFor(ctx, o, host, client.Discovery())
	if err != nil {
		return nil, nil, err
	}
	storeGuard := newStoreGuard(o, client, store.identity)
	notWatched := storeGuard.Wrap(store.unwatched(generic.RESTOptionsGetter))
	generic.RESTOptionsGetter = storeGuard.Wrap(store.watched(generic.RESTOptionsGetter))
	access := generic.Authorization.Authorizer
	// A cached decision about all names of a namespace counts for each of them.
	generic.Authorization.Authorizer = authorization.ForAllNames(access)
	scaler, err := scaling.NewClient(scaling.Options{Config: host})
	if err != nil {
		return nil, nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(host)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the dynamic client for the host cluster: %w", err)
	}
	loopback := loopbackConfig(generic)
	broadcaster := events.NewBroadcaster(eventSink{&events.EventSinkImpl{Interface: client.EventsV1()}})
	recorder := newAggregatingRecorder(broadcaster.NewRecorder(apiserver.Scheme, "elasti-apiserver"))
	ownMetrics := NewMetrics(legacyregistry.Registerer(), generic.SecureServing.Cert)
	makeController := func(registry apiserver.Registry) (apiserver.Runner, error) {
		return newController(&o.Controller, controllerDependencies{
			host:      host,
			loopback:  loopback,
			registry:  registry,
			namespace: o.ServingCertificate.Namespace,
			scaling:   scaler,
			recorder:  recorder,
			metrics:   ownMetrics,
			port:      o.Recommended.SecureServing.BindPort,
			shared:    o.Storage.Backend != options.StorageEmbedded,
		})
	}
	server, err := apiserver.New(&apiserver.Config{
		Generic: generic,
		Extra: apiserver.ExtraConfig{
			Scaler:              scaler,
			Events:              recorder,
			Warner:              preflight.New(preflight.Options{Kubernetes: client, Dynamic: dynamicClient, Scaling: scaler}),
			Access:              access,
			Metrics:             ownMetrics.registry,
			Namespaces:          o.Controller.Namespaces,
			OnlyWriter:          o.Storage.Backend == options.StorageEmbedded,
			UncachedRESTOptions: notWatched,
			StorageCheck:        store.check,
			StoreGuard:          storeGuard,

			NewController: makeController,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return server, recordEvents(broadcaster), nil
}

// genericConfigFor returns the configuration of the generic API server, with what it takes
// of the host cluster: its serving certificate, and the kinds of admission that are served.
func genericConfigFor(ctx context.Context, o *options.Options, host *rest.Config, served discovery.DiscoveryInterface) (*genericapiserver.RecommendedConfig, error) {
	if err := useSelfManagedCertificate(&o.ServingCertificate, o.Recommended.SecureServing.SecureServingOptions, host); err != nil {
		return nil, err
	}
	if err := disableUnservedAdmission(klog.FromContext(ctx), o.Recommended.Admission, served); err != nil {
		return nil, err
	}
	enforceResourceQuotas(o.Recommended)
	return genericConfig(o)
}

// loopbackConfig is for what the controller writes, which does not leave the process.
func loopbackConfig(generic *genericapiserver.RecommendedConfig) *rest.Config {
	loopback := rest.CopyConfig(generic.LoopbackClientConfig)
	loopback.DisableCompression = true
	return loopback
}

func genericConfig(o *options.Options) (*genericapiserver.RecommendedConfig, error) {
	config := genericapiserver.NewRecommendedConfig(apiserver.Codecs)
	if err := o.ServerRun.ApplyTo(&config.Config); err != nil {
		return nil, fmt.Errorf("applying the server options: %w", err)
	}
	namer := openapi.NewDefinitionNamer(apiserver.Scheme)
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title = "elasti-apiserver"
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config.Info.Title = "elasti-apiserver"
	if err := applyRecommended(config, o); err != nil {
		return nil, err
	}
	return config, nil
}
