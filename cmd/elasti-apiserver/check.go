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
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/truefoundry/elasti-apiserver/pkg/installcheck"
)

// errProblems ends the command, which has written what is wrong.
var errProblems = errors.New("the installation does not serve, the problems are above")

// newCheckCommand returns the command that checks an installation.
func newCheckCommand() *cobra.Command {
	var kubeconfig string
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "elasti-system"
	}
	timeout := 3 * time.Minute
	command := &cobra.Command{
		Use:   "check",
		Short: "Wait until an installation serves, or say what is wrong with it",
		Long: `Wait until an installation serves: its Deployments are available, the API server of
the cluster reaches elasti-apiserver, and ElastiServices can be listed. If it does
not by the timeout, write what is wrong and what to do about it.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			checker, err := newChecker(kubeconfig, namespace)
			if err != nil {
				return err
			}
			problems := checker.Await(command.Context(), timeout)
			for _, problem := range problems {
				if _, err := fmt.Fprintf(command.OutOrStdout(), "%s\n", problem); err != nil {
					return err
				}
			}
			if len(problems) > 0 {
				return errProblems
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "elasti-apiserver and elasti-resolver serve in the namespace %s.\n", namespace)
			return err
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "File with the address and credentials of the cluster. Empty: those of the pod.")
	command.Flags().StringVar(&namespace, "namespace", namespace, "Namespace of the installation. Defaults to $POD_NAMESPACE, or elasti-system.")
	command.Flags().DurationVar(&timeout, "timeout", timeout, "How long to wait.")
	// The usage of the parent describes the flags of the server.
	command.SetUsageFunc((&cobra.Command{}).UsageFunc())
	command.SetHelpFunc((&cobra.Command{}).HelpFunc())
	return command
}

func newChecker(kubeconfig, namespace string) (*installcheck.Checker, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the address and credentials of the cluster, outside of a pod give --kubeconfig: %w", err)
	}
	return installcheck.NewForConfig(config, namespace)
}
