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

package elastiservice

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// tableConvertor renders ElastiServices as `kubectl get` prints them.
type tableConvertor struct{}

var _ rest.TableConvertor = tableConvertor{}

// columns returns the columns of the table. A column with a priority above zero is
// shown with -o wide only.
func columns() []metav1.TableColumnDefinition {
	meta := metav1.ObjectMeta{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: meta["name"]},
		{Name: "Target", Type: "string", Description: "The object that is scaled to zero and back."},
		{Name: "Service", Type: "string", Description: "The Service that clients call."},
		{Name: "Mode", Type: "string", Description: "proxy while resolvers are in the path of the traffic, serve while it goes straight to the pods."},
		{Name: "Ready", Type: "string", Description: "Ready and desired replicas of the target."},
		{Name: "Reason", Type: "string", Description: "What keeps the target from starting or the ElastiService from doing what it is for; otherwise why the target sleeps or is awake."},
		{Name: "Last Activity", Type: "string", Description: "How long ago the target was last known to be in use."},
		{Name: "Age", Type: "date", Description: meta["creationTimestamp"]},
		{Name: "Status", Type: "string", Priority: 1, Description: "Ready, or the reason why not."},
		{Name: "Cooldown", Type: "string", Priority: 1, Description: "How long the triggers must say idle before the target sleeps."},
		{Name: "Triggers", Type: "string", Priority: 1, Description: "The types of the triggers."},
		{Name: "Proxy Ports", Type: "string", Priority: 1, Description: "Service ports and the resolver ports that belong to them."},
		{Name: "Message", Type: "string", Priority: 1, Description: "The reason in words."},
	}
}

// ConvertToTable renders one ElastiService or a list of them.
func (tableConvertor) ConvertToTable(_ context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if single, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = single.GetResourceVersion()
	}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = columns()
	}
	var err error
	table.Rows, err = metatable.MetaToTableRow(object, func(obj runtime.Object, _ metav1.Object, _, age string) ([]any, error) {
		elastiService, ok := obj.(*elasti.ElastiService)
		if !ok {
			return nil, fmt.Errorf("expected an ElastiService to print, got %T", obj)
		}
		return row(elastiService, age), nil
	})
	return table, err
}

func row(elastiService *elasti.ElastiService, age string) []any {
	spec, status := &elastiService.Spec, &elastiService.Status
	reason, message := shownReason(status.Conditions)
	return []any{
		elastiService.Name,
		strings.ToLower(spec.ScaleTargetRef.Kind) + "/" + spec.ScaleTargetRef.Name,
		spec.Service,
		string(status.Mode),
		fmt.Sprintf("%d/%d", status.ReadyReplicas, status.Replicas),
		reason,
		since(status.LastActivityTime),
		age,
		readiness(status.Conditions),
		cooldown(spec.CooldownPeriod),
		triggerTypes(spec.Triggers),
		proxyPorts(status.ProxyPorts),
		message,
	}
}

// shownReason returns the reason and message of the first of these conditions
// that there is: Ready while it is not true, which also says what keeps the target
// from starting, then Sleeping, then TargetAvailable.
func shownReason(conditions []metav1.Condition) (reason, message string) {
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil && ready.Status != metav1.ConditionTrue {
		return ready.Reason, ready.Message
	}
	for _, conditionType := range []string{v1alpha1.ConditionSleeping, v1alpha1.ConditionTargetAvailable} {
		if found := meta.FindStatusCondition(conditions, conditionType); found != nil {
			return found.Reason, found.Message
		}
	}
	return "<none>", "<none>"
}

func since(t *metav1.Time) string {
	if t.IsZero() {
		return "<none>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func readiness(conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return "Unknown"
	case ready.Status == metav1.ConditionTrue:
		return "Ready"
	default:
		return ready.Reason
	}
}

func cooldown(seconds *int32) string {
	if seconds == nil {
		return "<none>"
	}
	return duration.HumanDuration(time.Duration(*seconds) * time.Second)
}

func triggerTypes(triggers []elasti.ScaleTrigger) string {
	if len(triggers) == 0 {
		return "<none>"
	}
	types := make([]string, 0, len(triggers))
	for _, trigger := range triggers {
		types = append(types, trigger.Type)
	}
	return strings.Join(types, ",")
}

func proxyPorts(ports []elasti.ProxyPort) string {
	if len(ports) == 0 {
		return "<none>"
	}
	pairs := make([]string, 0, len(ports))
	for _, port := range ports {
		pairs = append(pairs, fmt.Sprintf("%d:%d", port.Port, port.ProxyPort))
	}
	return strings.Join(pairs, ",")
}
