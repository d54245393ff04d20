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
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// errNothingSelected keeps a command without arguments from changing a whole namespace.
var errNothingSelected = errors.New("give names, or --all, --selector or --all-namespaces")

func newSuspendCommand(session *session) *cobra.Command {
	return newAnnotateCommand(session, "true", "suspended: nothing puts it to sleep", &cobra.Command{
		Use:   "suspend [NAME...]",
		Short: "Keep targets from being put to sleep until they are resumed",
		Long: `Keep targets from being put to sleep: what would be done is recorded as Events and shown
in the condition DryRun. What sleeps already stays asleep until traffic, or 'kubectl
elasti wake', wakes it.

It sets the annotation ` + v1alpha1.AnnotationDryRun + `: a GitOps controller that manages
annotations undoes that.`,
		Example: `  # One
  kubectl elasti suspend cart

  # Everything, in the bad night
  kubectl elasti suspend -A`,
	})
}

func newResumeCommand(session *session) *cobra.Command {
	return newAnnotateCommand(session, nil, "resumed", &cobra.Command{
		Use:   "resume [NAME...]",
		Short: "Let suspended targets sleep again",
		Long:  `Let targets sleep again that 'kubectl elasti suspend' keeps awake.`,
		Example: `  # Everything, in the morning
  kubectl elasti resume -A`,
	})
}

// newAnnotateCommand completes a command that sets the annotation for decisions that are
// not carried out, or removes it where value is nil.
func newAnnotateCommand(session *session, value any, done string, command *cobra.Command) *cobra.Command {
	var selected selection
	all := false
	command.ValidArgsFunction = session.completeNames
	command.RunE = func(command *cobra.Command, names []string) error {
		if err := selected.check(names); err != nil {
			return err
		}
		if len(names) == 0 && !all && selected.selector == "" && !selected.allNamespaces {
			return errNothingSelected
		}
		client, err := session.client()
		if err != nil {
			return err
		}
		namespace, err := session.namespace(selected.allNamespaces)
		if err != nil {
			return err
		}
		list, err := selected.list(command.Context(), client, namespace, names)
		if err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationDryRun: value}}})
		if err != nil {
			return err
		}
		failed := false
		for i := range list.Items {
			elastiService := &list.Items[i]
			if _, err := client.ElastiServices(elastiService.Namespace).Patch(command.Context(), elastiService.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				session.progressf("%s/%s: %v\n", elastiService.Namespace, elastiService.Name, err)
				failed = true
				continue
			}
			session.printf("%s/%s %s\n", elastiService.Namespace, elastiService.Name, done)
		}
		if failed {
			return errNotAll
		}
		return nil
	}
	selected.addFlags(command)
	command.Flags().BoolVar(&all, "all", false, "All of the namespace.")
	return command
}
