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

package integration

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitForReason waits until a condition of the ElastiService "app" has a status
// and a reason, and returns its message.
func waitForReason(t *testing.T, namespace, condition string, status metav1.ConditionStatus, reason string) (message string) {
	t.Helper()
	eventuallyWithin(t, sleepTimeout, fmt.Sprintf("the condition %s is %s because of %s", condition, status, reason), func(ctx context.Context) string {
		object, err := elastiServices(namespace).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		found := meta.FindStatusCondition(object.Status.Conditions, condition)
		if found == nil || found.Status != status || found.Reason != reason {
			return fmt.Sprintf("it is %+v", found)
		}
		message = found.Message
		return ""
	})
	return message
}

// waitForEvent waits until an ElastiService of the namespace has an Event with the reason.
func waitForEvent(t *testing.T, namespace, reason string) {
	t.Helper()
	eventuallyWithin(t, sleepTimeout, "there is an Event "+reason, func(ctx context.Context) string {
		found, err := shared.Kubernetes.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range found.Items {
			if found.Items[i].Reason == reason && found.Items[i].Regarding.Kind == "ElastiService" {
				return ""
			}
		}
		return fmt.Sprintf("none of the %d Events is", len(found.Items))
	})
}
