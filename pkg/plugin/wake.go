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
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// defaultTimeout is how long the command waits for a state.
const defaultTimeout = 5 * time.Minute

// waiting says whether and how long a command waits for a state.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) addFlags(command *cobra.Command, until string) {
	command.Flags().BoolVar(&w.wait, "wait", false, "Wait until "+until+", and show the progress.")
	command.Flags().DurationVar(&w.timeout, "timeout", defaultTimeout, "How long to wait.")
}

// waker wakes targets.
type waker struct {
	session *session
	client  elasticlient.ElastiServicesGetter
	reason  string
	// replicas, if set, is how many the target is to have at least.
	replicas *int32
}

// wake wakes the target of an ElastiService, and says what that did.
func (w *waker) wake(ctx context.Context, namespace, name string) error {
	request := &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Reason: w.reason, Replicas: w.replicas}}
	response, err := w.client.ElastiServices(namespace).Wake(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("waking %s/%s: %w", namespace, name, explained(err))
	}
	result := "is awake already"
	if response.Status.Scaled {
		result = "woken"
	}
	w.session.printf("%s/%s %s, %d replicas, %d ready\n", namespace, name, result, response.Status.Replicas, response.Status.ReadyReplicas)
	return nil
}

func newWakeCommand(session *session) *cobra.Command {
	var waiting waiting
	waker := &waker{session: session}
	replicas := int32(0)
	command := &cobra.Command{
		Use:   "wake NAME...",
		Short: "Wake the targets of ElastiServices",
		Long: `Wake the targets of ElastiServices. One that is awake stays as it is.

It needs the permission to create elastiservices/wake, and for more replicas than
minTargetReplicas that to update elastiservices/scale.`,
		Example: `  # Wake cart and wait until a pod is ready
  kubectl elasti wake cart --wait

  # Before a sale
  kubectl elasti wake cart checkout --replicas=5 --reason="the sale begins"`,
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
			if command.Flags().Changed("replicas") {
				waker.replicas = ptr.To(replicas)
			}
			waker.client = client
			var problems []error
			for _, name := range names {
				problems = append(problems, waker.wake(command.Context(), namespace, name))
			}
			if err := errors.Join(problems...); err != nil || !waiting.wait {
				return err
			}
			return session.await(command.Context(), client, namespace, names, waiting.timeout, Awake, isAwake)
		},
	}
	waiting.addFlags(command, "a pod of each is ready")
	command.Flags().StringVar(&waker.reason, "reason", "kubectl elasti wake", "Why, for Events, the status and the audit log.")
	command.Flags().Int32Var(&replicas, "replicas", 0, "How many replicas the targets are to have at least. Defaults to minTargetReplicas of each.")
	return command
}

func newWakeAllCommand(session *session) *cobra.Command {
	var selected selection
	waker := &waker{session: session}
	dryRun := false
	command := &cobra.Command{
		Use:   "wake-all",
		Short: "Wake everything that sleeps",
		Long: `Wake everything that sleeps in a namespace, or in all of them, one after the other.
What fails does not keep the others from being woken.

Triggers put it to sleep again when its cooldown has passed: 'kubectl elasti suspend'
keeps it awake.`,
		Example: `  # The bad night
  kubectl elasti suspend -A
  kubectl elasti wake-all -A --reason="resolvers are being replaced"`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			namespace, err := session.namespace(selected.allNamespaces)
			if err != nil {
				return err
			}
			client, err := session.client()
			if err != nil {
				return err
			}
			waker.client = client
			list, err := selected.list(command.Context(), client, namespace, nil)
			if err != nil {
				return err
			}
			woken, failed := 0, 0
			for i := range list.Items {
				elastiService := &list.Items[i]
				if state, _ := stateOf(elastiService); state == Awake || state == Waking {
					continue
				}
				if dryRun {
					session.printf("%s/%s would be woken\n", elastiService.Namespace, elastiService.Name)
					continue
				}
				if err := waker.wake(command.Context(), elastiService.Namespace, elastiService.Name); err != nil {
					session.progressf("%v\n", err)
					failed++
					continue
				}
				woken++
			}
			session.progressf("%d of %d ElastiServices were woken, %d failed\n", woken, len(list.Items), failed)
			if failed > 0 {
				return errNotAll
			}
			return nil
		},
	}
	selected.addFlags(command)
	command.Flags().StringVar(&waker.reason, "reason", "kubectl elasti wake-all", "Why, for Events, the status and the audit log.")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "Only say what would be woken.")
	return command
}
