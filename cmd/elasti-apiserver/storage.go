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

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/app"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
)

// newStorageCommand returns the command for stores, whatever their backend.
func newStorageCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "storage",
		Short: "Copy what is stored from one storage to another one",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newStorageCopyCommand())
	useOwnHelp(command)
	return command
}

func newStorageCopyCommand() *cobra.Command {
	o := options.NewStorageCopy()
	command := &cobra.Command{
		Use:   "copy --from STORAGE --to STORAGE",
		Short: "Copy all ElastiServices from one storage to another one",
		Long: `Copy all ElastiServices from one storage to another one, with their UIDs and
statuses, and what else the server stores. The flags that say where the two are have the
names of those of the server, with from- and to- in front.

No server may run on either of the two. The copy is verified, and has the identity of the
original, so that a server takes it for that. If the command is interrupted, repeat it: a
server rejects an incomplete copy.

Two stores of which one is a complete copy of the other one, and was used since, differ: the
command says so, and changes nothing. To go back to a store that was copied before, copy to
it with --overwrite.`,
		Example: `  elasti-apiserver storage copy --from=embedded --from-data-dir=/var/lib/elasti-apiserver/data --to=cluster
  elasti-apiserver storage copy --from=cluster --to=embedded --to-data-dir=/var/lib/elasti-apiserver/data --overwrite
  elasti-apiserver storage copy --from=cluster --to=etcd --to-etcd-servers=https://etcd.example.com:2379 \
      --to-etcd-cafile=ca.crt --to-etcd-certfile=tls.crt --to-etcd-keyfile=tls.key`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return copyStorage(command, o)
		},
	}
	o.AddFlags(command.Flags())
	return command
}

func copyStorage(command *cobra.Command, o *options.StorageCopy) error {
	result, err := app.CopyStorage(command.Context(), o)
	if err != nil {
		return err
	}
	if result.Complete {
		_, err := fmt.Fprintf(command.OutOrStdout(), "The destination is a complete copy already, with the identity %s. It was left as it is.\n", result.Identity)
		return err
	}
	table := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 3, ' ', 0)
	_, err = fmt.Fprintf(table, "ELASTISERVICES\tPROXY PORT CLAIMS\tIDENTITY\n%d\t%d\t%s\n",
		result.Copied["elastiservices"], result.Copied["proxyportclaims"], result.Identity)
	return errors.Join(err, table.Flush())
}
