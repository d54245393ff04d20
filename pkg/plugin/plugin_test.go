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
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cart is an ElastiService with conditions that began ten minutes ago.
func cart(replicas, ready int32, conditions ...metav1.Condition) v1alpha1.ElastiService {
	for i := range conditions {
		conditions[i].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Minute))
	}
	return v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       v1alpha1.ElastiServiceSpec{Service: "cart", ScaleTargetRef: v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"}},
		Status: v1alpha1.ElastiServiceStatus{
			Replicas: replicas, ReadyReplicas: ready, Conditions: conditions,
			LastWake: &v1alpha1.WakeRecord{Time: metav1.NewTime(now.Add(-2 * time.Hour)), By: "user anna"},
		},
	}
}

func condition(conditionType string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: status, Reason: reason, Message: message}
}

func TestTableSaysWhatSleepsSinceWhenAndWhy(t *testing.T) {
	asleep := condition(v1alpha1.ConditionSleeping, metav1.ConditionTrue, "Asleep", "no traffic")
	awake := condition(v1alpha1.ConditionSleeping, metav1.ConditionFalse, "Active", "a trigger is active")
	for name, test := range map[string]struct {
		elastiService v1alpha1.ElastiService
		want          string
	}{
		"asleep":       {cart(0, 0, asleep), "cart Deployment/cart asleep 10m 0/0 Asleep 120m user anna"},
		"awake":        {cart(2, 2, awake), "cart Deployment/cart awake 10m 2/2 Active 120m user anna"},
		"waking":       {cart(2, 0, awake), "cart Deployment/cart waking 10m 0/2 Active 120m user anna"},
		"cannot start": {cart(2, 0, awake, condition(v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, "Unschedulable", "no node")), "cart Deployment/cart waking 10m 0/2 Unschedulable 120m user anna"},
		"not ready":    {cart(0, 0, asleep, condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "NoReadyResolver", "")), "cart Deployment/cart asleep 10m 0/0 NoReadyResolver 120m user anna"},
		"no status":    {cart(0, 0), "cart Deployment/cart unknown <none> 0/0 NotObserved 120m user anna"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := (&tableOfStates{}).print(&out, []v1alpha1.ElastiService{test.elastiService}, now); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := strings.Join(strings.Fields(lines[len(lines)-1]), " "); got != test.want {
				t.Errorf("the row is %q, expected %q", got, test.want)
			}
		})
	}
}

func TestTableWithNamespacesIsInOrder(t *testing.T) {
	other := cart(0, 0)
	other.Namespace = "blog"
	var out bytes.Buffer
	if err := (&tableOfStates{namespaces: true, wide: true}).print(&out, []v1alpha1.ElastiService{cart(0, 0), other}, now); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "NAMESPACE") || !strings.Contains(lines[0], "MESSAGE") ||
		!strings.HasPrefix(lines[1], "blog") || !strings.HasPrefix(lines[2], "shop") {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestFindingsAreTheConditionsThatAreNotAsTheyShouldBe(t *testing.T) {
	healthy := []metav1.Condition{
		condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Ready", ""),
		condition(v1alpha1.ConditionServiceFound, metav1.ConditionTrue, "Found", ""),
		condition(v1alpha1.ConditionConflict, metav1.ConditionFalse, "NoConflict", ""),
		condition(v1alpha1.ConditionSleeping, metav1.ConditionTrue, "Asleep", ""),
		// Nothing is wrong with a target that sleeps because it has no pod.
		condition(v1alpha1.ConditionTargetAvailable, metav1.ConditionFalse, "Starting", ""),
	}
	for name, test := range map[string]struct {
		with metav1.Condition
		want []string
	}{
		"nothing":           {metav1.Condition{Type: "Other", Status: metav1.ConditionFalse}, nil},
		"no resolver":       {condition(v1alpha1.ConditionResolverAvailable, metav1.ConditionFalse, "NoReadyResolver", "none is ready"), []string{"ResolverAvailable: NoReadyResolver: none is ready"}},
		"a taken Service":   {condition(v1alpha1.ConditionConflict, metav1.ConditionTrue, "ServiceTaken", "it is of web"), []string{"Conflict: ServiceTaken: it is of web"}},
		"decisions are dry": {condition(v1alpha1.ConditionDryRun, metav1.ConditionTrue, "WouldSleep", "it would sleep"), []string{"DryRun: WouldSleep: it would sleep"}},
		"only Ready says":   {condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "NameTaken", "a Service has the name"), []string{"Ready: NameTaken: a Service has the name"}},
	} {
		t.Run(name, func(t *testing.T) {
			conditions := slices.DeleteFunc(slices.Clone(healthy), func(c metav1.Condition) bool { return c.Type == test.with.Type })
			found := cart(0, 0, append(conditions, test.with)...)
			if got := findings(&found); !slices.Equal(got, test.want) {
				t.Errorf("the findings are %q, expected %q", got, test.want)
			}
		})
	}
	without := cart(0, 0)
	if got := findings(&without); len(got) != 1 {
		t.Errorf("without a status the findings are %q", got)
	}
}

func TestWhatTenantsWroteDoesNotRewriteTheTerminal(t *testing.T) {
	const written = "a test\x1b[2J\nshop/other: fine\r\u009b1A\u202eegassem"
	for _, conditionType := range []string{v1alpha1.ConditionSleeping, v1alpha1.ConditionResolverAvailable, v1alpha1.ConditionReady} {
		found := cart(0, 0, condition(conditionType, metav1.ConditionFalse, "Reason", written))
		found.Status.LastWake.By = written
		var table bytes.Buffer
		if err := (&tableOfStates{wide: true}).print(&table, []v1alpha1.ElastiService{found}, now); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
		for _, line := range append(append(lines, progress(&found)), findings(&found)...) {
			if len(lines) != 2 || strings.ContainsFunc(line, func(character rune) bool { return !unicode.IsPrint(character) }) {
				t.Errorf("%s is shown in %d lines, as %q", conditionType, len(lines), line)
			}
		}
	}
}

func TestErrorsOfAnInstallationThatDoesNotServeSayWhatToDo(t *testing.T) {
	resource := v1alpha1.Resource("elastiservices")
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"the group is not served":     {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "cart", "", 0, true), true},
		"no replica serves":           {apierrors.NewServiceUnavailable("no endpoint"), true},
		"the ElastiService is absent": {apierrors.NewNotFound(resource, "cart"), false},
		"the user may not":            {apierrors.NewForbidden(resource, "cart", nil), false},
	} {
		if got := strings.Contains(explained(test.err).Error(), "kubectl elasti doctor"); got != test.want {
			t.Errorf("%s: %v", name, explained(test.err))
		}
	}
}

func TestCommandsThatSelectNothingChangeNothing(t *testing.T) {
	for _, arguments := range [][]string{
		{"suspend"}, {"resume"}, {"suspend", "cart", "-A"}, {"wake"}, {"sleep"}, {"wake-all", "cart"},
		{"status", "cart", "-l", "app=cart"}, {"status", "--watch", "-o", "json"},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		command := NewCommand(streams)
		// Nothing serves there: a request would fail with another error, and late.
		command.SetArgs(append(arguments, "--server=http://127.0.0.1:1", "--namespace=shop", "--kubeconfig=/dev/null"))
		err := command.ExecuteContext(t.Context())
		if err == nil || strings.Contains(err.Error(), "127.0.0.1") || out.Len() > 0 {
			t.Errorf("%q: %v, %s", arguments, err, out)
		}
	}
}

func TestEveryCommandHasAnExampleAndSaysWhatItIs(t *testing.T) {
	streams, _, _, _ := genericiooptions.NewTestIOStreams()
	for _, command := range NewCommand(streams).Commands() {
		if command.Short == "" || command.Long == "" || !strings.Contains(command.Example, "kubectl elasti "+command.Name()) {
			t.Errorf("the help of %q is incomplete", command.Name())
		}
	}
}
