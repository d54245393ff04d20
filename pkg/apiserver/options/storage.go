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
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/truefoundry/elasti-apiserver/pkg/storage/cluster"
)

// StorageBackend names where ElastiServices are stored.
type StorageBackend string

const (
	// StorageEtcd is an external etcd, or a store with its protocol.
	StorageEtcd StorageBackend = "etcd"
	// StorageCluster is the host cluster: objects of CustomResourceDefinitions that
	// are for storage only.
	StorageCluster StorageBackend = "cluster"
	// StorageEmbedded is an etcd inside of this process.
	StorageEmbedded StorageBackend = "embedded"
)

// Storage chooses the backend of the registry. The commands that copy
// a store choose theirs by StoreLocation.
type Storage struct {
	// Backend is cluster, etcd or embedded. Empty means etcd when --etcd-servers is
	// given, otherwise cluster in a cluster and embedded outside of one.
	Backend StorageBackend
	// DataDir is the folder of the embedded store.
	DataDir string
	// Record is the ConfigMap that records which store the installation uses.
	Record string
	// AcceptNewStore is the identity of the store that may be given up for the one of
	// this server. Empty means none.
	AcceptNewStore string
}

func newStorage() Storage { return Storage{Record: "elasti-apiserver-store"} }

// AddFlags adds the flags that choose the backend.
func (o *Storage) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar((*string)(&o.Backend), "storage", string(o.Backend),
		"Where ElastiServices are stored: cluster (custom resources of the host cluster, which must have been deployed), etcd (an external one, see --etcd-servers) or embedded (an etcd inside this process, see --data-dir). Defaults to etcd when --etcd-servers is given, otherwise to cluster when the server runs in a cluster, without --kubeconfig, and to embedded when it does not.")
	flags.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"The folder of the embedded store. One process at a time can use it.")
	flags.StringVar(&o.Record, "store-record", o.Record,
		"The ConfigMap that records which store this installation uses. It is created when it does not exist. A server with another store does not become ready.")
	flags.StringVar(&o.AcceptNewStore, "accept-new-store", o.AcceptNewStore,
		"The identity, as recorded in --store-record, of the store that is given up, or \"unrecorded\" for one that versions without records have used: a server with another store, which may be empty, takes it for that of the installation from then on. It has no effect once another store is recorded.")
}

// Complete derives the backend from the other flags, and from where the process runs,
// when it is not given.
func (o *Storage) Complete(etcd *genericoptions.EtcdOptions, host *genericoptions.CoreAPIOptions) {
	switch {
	case o.Backend != "":
	case len(etcd.StorageConfig.Transport.ServerList) > 0:
		o.Backend = StorageEtcd
	case runsInHost(host):
		o.Backend = StorageCluster
	default:
		o.Backend = StorageEmbedded
	}
}

// runsInHost reports whether the process runs in the cluster that it is configured for: its
// pod knows where the API server is, and no kubeconfig names another one.
func runsInHost(host *genericoptions.CoreAPIOptions) bool {
	return host.CoreAPIKubeconfigPath == "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// Validate checks that the flags of the chosen backend, and only those, are given.
func (o *Storage) Validate(etcd *genericoptions.EtcdOptions) []error {
	servers := etcd.StorageConfig.Transport.ServerList
	var errs []error
	if o.Record == "" {
		errs = append(errs, errors.New("--store-record must be the name of a ConfigMap"))
	}
	switch o.Backend {
	case StorageEtcd:
		if len(servers) == 0 {
			errs = append(errs, errors.New("--storage=etcd needs --etcd-servers"))
		}
		if o.DataDir != "" {
			errs = append(errs, errors.New("--data-dir is for --storage=embedded only"))
		}
	case StorageEmbedded:
		if o.DataDir == "" {
			errs = append(errs, errors.New("--storage=embedded needs --data-dir; it is the default outside of a cluster, see --storage for the others"))
		}
		if len(servers) > 0 {
			errs = append(errs, errors.New("--etcd-servers is for --storage=etcd only"))
		}
	case StorageCluster:
		errs = append(errs, o.validateCluster(etcd)...)
	default:
		errs = append(errs, fmt.Errorf("--storage is %q, but must be one of %s", o.Backend, strings.Join([]string{string(StorageCluster), string(StorageEtcd), string(StorageEmbedded)}, ", ")))
	}
	return errs
}

// validateCluster checks that the flags of the other backends are not given.
func (o *Storage) validateCluster(etcd *genericoptions.EtcdOptions) []error {
	var errs []error
	if o.DataDir != "" {
		errs = append(errs, errors.New("--data-dir is for --storage=embedded only"))
	}
	if len(etcd.StorageConfig.Transport.ServerList) > 0 {
		errs = append(errs, errors.New("--etcd-servers is for --storage=etcd only"))
	}
	if etcd.EncryptionProviderConfigFilepath != "" {
		errs = append(errs, errors.New("--encryption-provider-config is not for --storage=cluster: the host cluster encrypts what it stores, name the resources of "+cluster.GroupVersion.Group+" in its own configuration"))
	}
	return errs
}
