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

// Package plugin is the plugin of kubectl: what an administrator sees and does with
// ElastiServices beyond the verbs that kubectl has.
//
// It uses the API as any client does, with the permissions of its user, and must not know
// how the server or the resolvers work. Begin with NewCommand.
package plugin

import (
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/version"

	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// NewCommand returns the command kubectl-elasti, which kubectl runs as `kubectl elasti`.
// It ends with an error when a part of what was requested is not done.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true).WithWarningPrinter(streams)
	command := &cobra.Command{
		Use:   "kubectl-elasti",
		Short: "See what sleeps, wake it, put it to sleep",
		Long: `See what sleeps and why, wake it, put it to sleep, and find out what is wrong.

The flags for the cluster and the namespace are those of kubectl.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl elasti"},
		Version:       version.Get().GitVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.SetIn(streams.In)
	command.SetOut(streams.Out)
	command.SetErr(streams.ErrOut)
	flags.AddFlags(command.PersistentFlags())
	session := &session{flags: flags, streams: streams}
	command.AddCommand(
		newStatusCommand(session),
		newWakeCommand(session),
		newWakeAllCommand(session),
		newSleepCommand(session),
		newSuspendCommand(session),
		newResumeCommand(session),
		newDoctorCommand(session),
	)
	return command
}

// session is the cluster that one run of the command is about, and its streams.
type session struct {
	flags   *genericclioptions.ConfigFlags
	streams genericiooptions.IOStreams
}

// client returns a client for the API of ElastiServices.
func (s *session) client() (*elasticlient.ElastiV1alpha1Client, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the address and credentials of the cluster: %w", err)
	}
	return elasticlient.NewForConfig(config)
}

// namespace returns the namespace that the command is about, which is empty for all.
func (s *session) namespace(all bool) (string, error) {
	if all {
		return metav1.NamespaceAll, nil
	}
	namespace, _, err := s.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}

// printf writes for the user. A reader that has closed ends the process by its signal.
func (s *session) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.streams.Out, format, args...)
}

// progressf writes what is happening, beside the result.
func (s *session) progressf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.streams.ErrOut, format, args...)
}

// completeNames returns the names of the ElastiServices that an argument may be.
func (s *session) completeNames(command *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	client, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	namespace, err := s.namespace(false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := client.ElastiServices(namespace).List(command.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
