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
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const outputWide = "wide"

func newStatusCommand(session *session) *cobra.Command {
	var selected selection
	var output string
	watch := false
	command := &cobra.Command{
		Use:   "status [NAME...]",
		Short: "Show what sleeps, since when, why not, and what woke it last",
		Long: `Show what the targets of ElastiServices do: asleep, waking or awake, since when, why,
and which client woke them last.

On a terminal the table follows the cluster until you press Ctrl-C; --watch=false prints
it once.`,
		Example: `  # This namespace, followed
  kubectl elasti status

  # Everything, once, with the reasons in words
  kubectl elasti status -A -o wide --watch=false

  # For a script
  kubectl elasti status cart -o json`,
		ValidArgsFunction: session.completeNames,
		RunE: func(command *cobra.Command, names []string) error {
			if err := selected.check(names); err != nil {
				return err
			}
			shown := &tableOfStates{session: session, wide: output == outputWide, namespaces: selected.allNamespaces}
			client, err := session.client()
			if err != nil {
				return err
			}
			namespace, err := session.namespace(selected.allNamespaces)
			if err != nil {
				return err
			}
			asTable := output == "" || output == outputWide
			if !command.Flags().Changed("watch") {
				watch = asTable && isTerminal(session.streams.Out)
			}
			switch {
			case watch && !asTable:
				return fmt.Errorf("--watch shows a table: leave it out with --output=%s", output)
			case watch:
				return shown.follow(command.Context(), client, namespace, selected.selector, names)
			}
			list, err := selected.list(command.Context(), client, namespace, names)
			if err != nil {
				return err
			}
			if !asTable {
				return session.print(list, output)
			}
			return shown.print(session.streams.Out, list.Items, time.Now())
		},
	}
	selected.addFlags(command)
	command.Flags().StringVarP(&output, "output", "o", "", "Print the ElastiServices as json or yaml, or the table with more columns: wide.")
	command.Flags().BoolVarP(&watch, "watch", "w", false, "Follow the cluster. Defaults to true on a terminal.")
	return command
}

// print writes ElastiServices as json or yaml.
func (s *session) print(list *v1alpha1.ElastiServiceList, output string) error {
	printer, err := genericclioptions.NewJSONYamlPrintFlags().ToPrinter(output)
	if err != nil {
		return fmt.Errorf("--output is wide, json or yaml: %w", err)
	}
	return printer.PrintObj(list, s.streams.Out)
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// tableOfStates shows ElastiServices as a table.
type tableOfStates struct {
	session *session
	// wide adds columns, namespaces the one of the namespace.
	wide, namespaces bool
}

// print writes the table. Ages are those at the time now.
func (t *tableOfStates) print(out io.Writer, elastiServices []v1alpha1.ElastiService, now time.Time) error {
	if len(elastiServices) == 0 {
		_, err := fmt.Fprintln(out, "There is no ElastiService here.")
		return err
	}
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string"},
		{Name: "Target", Type: "string"},
		{Name: "State", Type: "string"},
		{Name: "Since", Type: "string"},
		{Name: "Pods", Type: "string"},
		{Name: "Why", Type: "string"},
		{Name: "Last wake", Type: "string"},
		{Name: "By", Type: "string"},
		{Name: "Message", Type: "string", Priority: 1},
	}}
	slices.SortFunc(elastiServices, func(a, b v1alpha1.ElastiService) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range elastiServices {
		table.Rows = append(table.Rows, row(&elastiServices[i], now))
	}
	printer := printers.NewTablePrinter(printers.PrintOptions{Wide: t.wide, WithNamespace: t.namespaces})
	return printer.PrintObj(table, out)
}

func row(elastiService *v1alpha1.ElastiService, now time.Time) metav1.TableRow {
	const none = "<none>"
	status := &elastiService.Status
	state, began := stateOf(elastiService)
	since, lastWake, by := none, none, none
	if !began.IsZero() {
		since = duration.HumanDuration(now.Sub(began))
	}
	if wake := status.LastWake; wake != nil {
		lastWake, by = duration.HumanDuration(now.Sub(wake.Time.Time)), printable(wake.By)
	}
	reason, message := why(elastiService)
	row := metav1.TableRow{Cells: []any{
		elastiService.Name,
		elastiService.Spec.ScaleTargetRef.Kind + "/" + elastiService.Spec.ScaleTargetRef.Name,
		string(state),
		since,
		fmt.Sprintf("%d/%d", status.ReadyReplicas, status.Replicas),
		reason,
		lastWake,
		by,
		message,
	}}
	// The printer takes the namespace from it.
	row.Object.Object = elastiService
	return row
}
