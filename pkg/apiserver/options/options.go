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

// Package options has the flags of elasti-apiserver: their defaults, help, and how one is
// derived from and checked against others.
//
// It does not know what is done with them: package app does. Begin with Options.
package options

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver"
)

// defaultEtcdPrefix keeps the objects of this API apart from others in a shared etcd.
const defaultEtcdPrefix = "/registry/elasti.truefoundry.com"

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
	// The host cluster counts ElastiServices, and only this server can reject them. Last,
	// so that what another plugin rejects is not charged.
	resourcequota.Register(recommended.Admission.Plugins)
	recommended.Admission.RecommendedPluginOrder = append(recommended.Admission.RecommendedPluginOrder, resourcequota.PluginName)
	// A kubelet requests these without credentials.
	recommended.Authorization.AlwaysAllowPaths = []string{"/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*"}
	// A revoked permission still counts for that long, also that to refer to a Secret in
	// a trigger, which only this server checks.
	recommended.Authorization.AllowCacheTTL = authorizationCacheTTL
	recommended.Authorization.DenyCacheTTL = authorizationCacheTTL
	serverRun := genericoptions.NewServerRunOptions()
	// Without it, open watches would hold up a shutdown for a minute.
	serverRun.ShutdownWatchTerminationGracePeriod = watchShutdownGracePeriod
	return &Options{
		ServerRun:          serverRun,
		Recommended:        recommended,
		Logging:            logsapi.NewLoggingConfiguration(),
		Storage:            newStorage(),
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
	o.Storage.Complete(o.Recommended.Etcd, o.Recommended.CoreAPI)
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
