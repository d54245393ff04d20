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
	"slices"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// storeFlags are the flags of the server that say where a store is, and how to read it.
var storeFlags = []string{
	"data-dir", "etcd-servers", "etcd-prefix", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "encryption-provider-config",
}

// StorageCopy are the flags of "elasti-apiserver storage copy".
type StorageCopy struct {
	// From and To are the two stores.
	From, To *StoreLocation
	// Overwrite replaces what the destination has.
	Overwrite bool
	// Once accepts a destination that is a complete copy, even if it has changed since.
	Once bool
}

// NewStorageCopy returns the options with their defaults.
func NewStorageCopy() *StorageCopy {
	return &StorageCopy{From: newStoreLocation("from"), To: newStoreLocation("to")}
}

// AddFlags adds the flags of the copy.
func (o *StorageCopy) AddFlags(flags *pflag.FlagSet) {
	o.From.addFlags(flags, "The store that is copied")
	o.To.addFlags(flags, "The store that becomes the copy")
	flags.BoolVar(&o.Overwrite, "overwrite", o.Overwrite,
		"Replace what the destination has, also if it is a store of its own, or was copied completely before.")
	flags.BoolVar(&o.Once, "once", o.Once,
		"Leave a destination that was copied completely before as it is, also if it has changed since: for a command that is repeated at each start of a server that uses the destination.")
}

// Validate checks the options. Each error names the flag.
func (o *StorageCopy) Validate() error {
	errs := append(o.From.validate(), o.To.validate()...)
	if o.Overwrite && o.Once {
		errs = append(errs, errors.New("--once cannot be given with --overwrite: one leaves a complete copy as it is, the other one replaces it"))
	}
	return utilerrors.NewAggregate(errs)
}

// StoreLocation says where a store is that no server uses.
type StoreLocation struct {
	// Backend is cluster, etcd or embedded.
	Backend StorageBackend
	// DataDir is the folder of the embedded store.
	DataDir string
	// Etcd says where an etcd is, and how objects are encoded in any store.
	Etcd *genericoptions.EtcdOptions
	// Kubeconfig is for the host cluster that is the store. Empty means the one that
	// this process runs in.
	Kubeconfig string

	// side is what the names of the flags begin with.
	side string
}

func newStoreLocation(side string) *StoreLocation {
	etcd := New().Recommended.Etcd
	// Servers drop the history.
	etcd.StorageConfig.CompactionInterval = 0
	return &StoreLocation{Etcd: etcd, side: side}
}

func (o *StoreLocation) addFlags(flags *pflag.FlagSet, what string) {
	flags.StringVar((*string)(&o.Backend), o.side, string(o.Backend), what+": cluster, etcd or embedded, as --storage of the server. Required.")
	flags.StringVar(&o.Kubeconfig, o.side+"-kubeconfig", o.Kubeconfig,
		"The kubeconfig of the host cluster, for cluster. Defaults to the cluster that this process runs in.")
	ofServer := pflag.NewFlagSet("", pflag.ContinueOnError)
	ofServer.StringVar(&o.DataDir, "data-dir", o.DataDir, "The folder of the embedded store, which no process may use.")
	o.Etcd.AddFlags(ofServer)
	ofServer.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(storeFlags, flag.Name) {
			renamed := *flag
			renamed.Name = o.side + "-" + flag.Name
			flags.AddFlag(&renamed)
		}
	})
}

// servers are the addresses of the etcd.
func (o *StoreLocation) servers() []string { return o.Etcd.StorageConfig.Transport.ServerList }

func (o *StoreLocation) validate() []error {
	var errs []error
	switch o.Backend {
	case StorageCluster:
		if o.Etcd.EncryptionProviderConfigFilepath != "" {
			errs = append(errs, fmt.Errorf("--%s-encryption-provider-config is not for --%s=cluster: the host cluster encrypts what it stores", o.side, o.side))
		}
	case StorageEtcd:
		if len(o.servers()) == 0 {
			errs = append(errs, fmt.Errorf("--%s=etcd needs --%s-etcd-servers", o.side, o.side))
		}
	case StorageEmbedded:
		if o.DataDir == "" {
			errs = append(errs, fmt.Errorf("--%s=embedded needs --%s-data-dir", o.side, o.side))
		}
	default:
		errs = append(errs, fmt.Errorf("--%s is %q, but must be one of %s, %s, %s", o.side, o.Backend, StorageCluster, StorageEtcd, StorageEmbedded))
	}
	if o.Backend != StorageEmbedded && o.DataDir != "" {
		errs = append(errs, fmt.Errorf("--%s-data-dir is for --%s=embedded only", o.side, o.side))
	}
	if o.Backend != StorageEtcd && len(o.servers()) > 0 {
		errs = append(errs, fmt.Errorf("--%s-etcd-servers is for --%s=etcd only", o.side, o.side))
	}
	if o.Backend != StorageCluster && o.Kubeconfig != "" {
		errs = append(errs, errors.New("--"+o.side+"-kubeconfig is for --"+o.side+"=cluster only"))
	}
	return errs
}
