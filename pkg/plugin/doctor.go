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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/installcheck"
)

// errFindings ends a command that has written what is wrong.
var errFindings = errors.New("something is wrong, see above")

func newDoctorCommand(session *session) *cobra.Command {
	var selected selection
	installation := "elasti-system"
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong, and what to do about it",
		Long: `Check the installation (Deployments, pods, registration of the API, certificate) and the
ElastiServices of a namespace, or of all: what is wrong with each, and what to do.

It needs the permission to read Deployments and pods in the namespace of the installation,
and the APIService.`,
		Example: `  kubectl elasti doctor -A`,
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			checker, err := session.checker(installation)
			if err != nil {
				return err
			}
			problems := checker.Check(command.Context())
			for _, problem := range problems {
				session.printf("installation: %s\n", problem)
			}
			found := len(problems)
			client, err := session.client()
			if err != nil {
				return err
			}
			namespace, err := session.namespace(selected.allNamespaces)
			if err != nil {
				return err
			}
			list, err := selected.list(command.Context(), client, namespace, nil)
			if err != nil && found > 0 {
				// It is a consequence of the problems above.
				return errFindings
			}
			if err != nil {
				return err
			}
			for i := range list.Items {
				for _, finding := range findings(&list.Items[i]) {
					session.printf("%s/%s: %s\n", list.Items[i].Namespace, list.Items[i].Name, finding)
					found++
				}
			}
			if found > 0 {
				return errFindings
			}
			session.printf("The installation serves, and nothing is wrong with %d ElastiServices.\n", len(list.Items))
			return nil
		},
	}
	selected.addFlags(command)
	command.Flags().StringVar(&installation, "installation-namespace", installation, "Namespace of elasti-apiserver and its resolvers.")
	return command
}

func (s *session) checker(namespace string) (*installcheck.Checker, error) {
	config, err := s.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the address and credentials of the cluster: %w", err)
	}
	return installcheck.NewForConfig(config, namespace)
}

// finding says in a line what a condition says.
func finding(condition *metav1.Condition) string {
	return printable(condition.Type + ": " + condition.Reason + ": " + condition.Message)
}

// findings says what is wrong with an ElastiService, or keeps it from doing what it is for:
// the reason and the message of each condition that is not as it should be.
func findings(elastiService *v1alpha1.ElastiService) (found []string) {
	conditions := elastiService.Status.Conditions
	if len(conditions) == 0 {
		return []string{"elasti-apiserver has written no status: see whether a replica of it leads, and whether it works on this namespace (--namespaces)"}
	}
	// Ready repeats the first of those that follow.
	for _, wanted := range []struct {
		conditionType string
		wrong         metav1.ConditionStatus
	}{
		{v1alpha1.ConditionServiceFound, metav1.ConditionFalse},
		{v1alpha1.ConditionTargetFound, metav1.ConditionFalse},
		{v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse},
		{v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse},
		{v1alpha1.ConditionConflict, metav1.ConditionTrue},
		{v1alpha1.ConditionAutoscalerFound, metav1.ConditionFalse},
		{v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse},
		{v1alpha1.ConditionScalingConflict, metav1.ConditionTrue},
		{v1alpha1.ConditionDryRun, metav1.ConditionTrue},
		{v1alpha1.ConditionServiceCompatible, metav1.ConditionFalse},
		{v1alpha1.ConditionTargetCompatible, metav1.ConditionFalse},
		{v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse},
	} {
		condition := meta.FindStatusCondition(conditions, wanted.conditionType)
		if condition == nil || condition.Status != wanted.wrong {
			continue
		}
		if state, _ := stateOf(elastiService); wanted.conditionType == v1alpha1.ConditionTargetAvailable && state != Waking {
			continue
		}
		found = append(found, finding(condition))
	}
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); len(found) == 0 && ready != nil && ready.Status == metav1.ConditionFalse {
		found = append(found, finding(ready))
	}
	return found
}
