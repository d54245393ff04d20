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
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// Two servers that receive writes at the same time may each accept an ElastiService for one
// Service. The older one owns it then, and the other one reports the conflict.
func TestOlderOfTwoElastiServicesForAServiceHasIt(t *testing.T) {
	replicas := startReplicas(t)
	waitForLeader(t, replicas[0], replicas[1])
	namespace := newNamespace(t)
	clients := [2]elastiv1alpha1client.ElastiServiceInterface{direct(t, replicas[0], namespace), direct(t, replicas[1], namespace)}

	// Which of them is rejected depends on timing.
	const attempts = 100
	var pair [2]*v1alpha1.ElastiService
	for attempt := 0; pair[0] == nil || pair[1] == nil; attempt++ {
		if attempt == attempts {
			t.Fatalf("of none of %d pairs both were accepted", attempts)
		}
		pair = createAtOnce(t, clients, fmt.Sprintf("service-%d", attempt))
	}

	names := map[string]string{pair[0].Name: pair[1].Name, pair[1].Name: pair[0].Name}
	older := [2]bool{pair[0].CreationTimestamp.Before(&pair[1].CreationTimestamp), pair[1].CreationTimestamp.Before(&pair[0].CreationTimestamp)}
	eventuallyWithin(t, discoveryTimeout, "one of them has the Service", func(ctx context.Context) string {
		owners := 0
		for i, client := range clients {
			object, err := client.Get(ctx, pair[i].Name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			condition := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionConflict)
			switch {
			case condition == nil:
				return object.Name + " has no condition Conflict"
			case condition.Status == metav1.ConditionFalse:
				owners++
				if older[1-i] {
					return object.Name + " is the younger one and has the Service"
				}
			case !strings.Contains(condition.Message, names[object.Name]):
				return fmt.Sprintf("%s does not name the other one: %s", object.Name, condition.Message)
			}
		}
		if owners != 1 {
			return fmt.Sprintf("%d of them have the Service", owners)
		}
		return ""
	})
}

// createAtOnce creates two ElastiServices for one Service, each through a
// client of its own, and returns those that were accepted.
func createAtOnce(t *testing.T, clients [2]elastiv1alpha1client.ElastiServiceInterface, service string) (accepted [2]*v1alpha1.ElastiService) {
	t.Helper()
	var group sync.WaitGroup
	for i, client := range clients {
		group.Go(func() {
			object := newElastiService(fmt.Sprintf("%s-%d", service, i))
			object.Spec.Service = service
			created, err := client.Create(t.Context(), object, metav1.CreateOptions{})
			switch {
			case err == nil:
				accepted[i] = created
			case !apierrors.IsInvalid(err):
				t.Errorf("creating %s: %v", object.Name, err)
			}
		})
	}
	group.Wait()
	return accepted
}
