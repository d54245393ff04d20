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
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// The API is served while no controller runs: the leader is dead, and its Lease has not
// expired yet.
func TestPreviousTargetIsWokenAfterChangesWhileNoControllerRuns(t *testing.T) {
	replicas := startReplicas(t)
	leader := waitForLeader(t, replicas[:]...)
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	waitForCondition(t, namespace, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
	private := readElastiService(t, namespace).Status.PrivateService

	replicas[leader].Kill()
	if err := shared.RemoveReplica(t.Context(), replicas[leader]); err != nil {
		t.Fatal(err)
	}
	if err := shared.Kubernetes.CoreV1().Services(namespace).Delete(t.Context(), private, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the private Service: %v", err)
	}
	patch := []byte(`{"spec":{"scaleTargetRef":{"name":"another"}}}`)
	if _, err := direct(t, replicas[1-leader], namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("changing the target: %v", err)
	}
	waitForLeader(t, replicas[1-leader])
	waitForDesired(t, namespace, 1)
}

// It is the only object in the store, so that a lost store cannot be excluded.
func TestFinalizerOfTheLastElastiServiceRemovedByHandWakesTheTarget(t *testing.T) {
	stopServer(t)
	waitForLeader(t, startReplica(t, "alone"))
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)

	giveBack := withoutPermissionToScale(t)
	client := elastiServices(namespace)
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatalf("removing the finalizer: %v", err)
	}
	eventually(t, "the ElastiService is deleted", func(ctx context.Context) string {
		if _, err := client.Get(ctx, "app", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "it is there"
		}
		return ""
	})
	giveBack()
	waitForDesired(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	waitForNoResolverSlices(t, namespace)
}
