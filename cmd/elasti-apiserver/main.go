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

// Command elasti-apiserver serves ElastiServices as part of the Kubernetes API, and
// runs the controller that reconciles them.
//
// It knows nothing of how they are served, which is in pkg/apiserver. Begin with
// newCommand.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"

	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/app"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"

	// The image contains only this binary, which therefore embeds the root certificates
	// for requests to servers outside of the cluster.
	_ "golang.org/x/crypto/x509roots/fallback"
)

func main() {
	// The process must not end because the reader of its log has ended.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	o := options.New()
	command := &cobra.Command{
		Use:          "elasti-apiserver",
		Short:        "Serve ElastiServices as part of the Kubernetes API",
		Long:         "elasti-apiserver is an aggregated API server for elasti.truefoundry.com. It stores ElastiServices, wakes their targets, and reconciles Services, EndpointSlices and modes.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := o.Complete(); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return app.Run(command.Context(), o)
		},
	}
	command.SetContext(genericapiserver.SetupSignalContext())
	sections := o.Flags()
	verflag.AddFlags(sections.FlagSet("global"))
	globalflag.AddGlobalFlags(sections.FlagSet("global"), command.Name())
	for _, section := range sections.FlagSets {
		command.Flags().AddFlagSet(section)
	}
	columns, _, _ := term.TerminalSize(command.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(command, *sections, columns)
	command.AddCommand(newSnapshotCommand(), newStorageCommand(), newCheckCommand())
	return command
}
