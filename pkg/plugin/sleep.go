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

package plugin

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newSleepCommand(session *session) *cobra.Command {
	var waiting waiting
	command := &cobra.Command{
		Use:   "sleep NAME...",
		Short: "Request sleep for the targets of ElastiServices",
		Long: `Request sleep for the targets of ElastiServices, without waiting for cooldownPeriod. A
target sleeps as soon as resolvers are in the path of its Service, and the next request
wakes it. Open connections are not waited for.

It needs the permission to get and update elastiservices/scale.`,
		Example: `  # Put cart to sleep and wait for it
  kubectl elasti sleep cart --wait`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: session.completeNames,
		RunE: func(command *cobra.Command, names []string) error {
			namespace, err := session.namespace(false)
			if err != nil {
				return err
			}
			client, err := session.client()
			if err != nil {
				return err
			}
			var problems []error
			for _, name := range names {
				scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
				if _, err := client.ElastiServices(namespace).UpdateScale(command.Context(), name, scale, metav1.UpdateOptions{}); err != nil {
					problems = append(problems, fmt.Errorf("requesting sleep for %s/%s: %w", namespace, name, explained(err)))
					continue
				}
				session.printf("%s/%s is to sleep\n", namespace, name)
			}
			if err := errors.Join(problems...); err != nil || !waiting.wait {
				return err
			}
			return session.await(command.Context(), client, namespace, names, waiting.timeout, Asleep, isAsleep)
		},
	}
	waiting.addFlags(command, "they sleep")
	return command
}
