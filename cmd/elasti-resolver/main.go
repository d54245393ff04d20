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

// Command elasti-resolver receives the traffic of sleeping services, holds it, and
// forwards it as soon as a pod is ready.
//
// It knows nothing of how that is done, which is in pkg/resolver. Begin with main.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/app"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/options"
)

func main() {
	// The process must not end because the reader of its log has ended.
	signal.Ignore(syscall.SIGPIPE)
	o := options.New()
	command := &cobra.Command{
		Use:          "elasti-resolver",
		Short:        "Holds the traffic of sleeping services and wakes them",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			// A second signal ends the process at once.
			go func() { <-ctx.Done(); stop() }()
			return app.Run(ctx, o)
		},
	}
	o.AddFlags(command.Flags())
	os.Exit(cli.Run(command))
}
