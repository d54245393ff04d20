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

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// pageSize is how many ElastiServices one request lists.
const pageSize = 500

// errNotAll ends a command that has written what it could not do.
var errNotAll = errors.New("not everything was done, see above")

// selection says which ElastiServices a command is about: those that are named, or else
// those that a selector matches.
type selection struct {
	allNamespaces bool
	selector      string
}

func (s *selection) addFlags(command *cobra.Command) {
	command.Flags().BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "Those of all namespaces.")
	command.Flags().StringVarP(&s.selector, "selector", "l", "", "Those whose labels match, as in app=cart,tier!=test.")
}

func (s *selection) check(names []string) error {
	if len(names) > 0 && (s.allNamespaces || s.selector != "") {
		return errors.New("give names, or --all-namespaces and --selector, not both")
	}
	return nil
}

// list returns the selected ElastiServices.
func (s *selection) list(ctx context.Context, client elasticlient.ElastiServicesGetter, namespace string, names []string) (*v1alpha1.ElastiServiceList, error) {
	found := &v1alpha1.ElastiServiceList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "ElastiServiceList"}}
	for _, name := range names {
		elastiService, err := client.ElastiServices(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, explained(err)
		}
		found.Items = append(found.Items, *elastiService)
	}
	if len(names) > 0 {
		return found, nil
	}
	options := metav1.ListOptions{LabelSelector: s.selector, Limit: pageSize}
	for {
		page, err := client.ElastiServices(namespace).List(ctx, options)
		if err != nil {
			return nil, explained(err)
		}
		found.Items = append(found.Items, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// explained adds to an error of the API what to do about it, where that is known.
func explained(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return fmt.Errorf("the cluster does not serve %s, 'kubectl elasti doctor' says why: %w", v1alpha1.GroupName, err)
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("the API server of the cluster does not reach elasti-apiserver, 'kubectl elasti doctor' says why: %w", err)
	default:
		return err
	}
}
