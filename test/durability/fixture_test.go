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

package durability

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	elasticlientset "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	// waitTimeout bounds each wait. It is longer than the Lease of a leader that was killed
	// lasts, and than the aggregator takes to try a server again that was away.
	waitTimeout  = 2 * time.Minute
	pollInterval = 25 * time.Millisecond
	// requestTimeout bounds one request, so that one without a response ends.
	requestTimeout = 15 * time.Second
)

// newNamespace returns the name of a new namespace, which is deleted after the test.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespaces := shared.Kubernetes.CoreV1().Namespaces()
	created, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "durability-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := namespaces.Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting the namespace %s: %v", created.Name, err)
		}
		// Pods that were bound wait for a kubelet, and their namespace with them.
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		if err := shared.Kubernetes.CoreV1().Pods(created.Name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			t.Errorf("removing the pods of the namespace %s: %v", created.Name, err)
		}
	})
	return created.Name
}

// throughTheAggregator is the client configuration of the cluster's administrator.
func throughTheAggregator() *rest.Config {
	config := rest.CopyConfig(shared.Admin)
	config.Timeout = requestTimeout
	return config
}

// directTo is the same at one server, past the aggregator.
func directTo(server *environment.Server) *rest.Config {
	config := throughTheAggregator()
	config.Host = fmt.Sprintf("https://%s:%d", server.Address, server.Port)
	config.CAData, config.Insecure = nil, true
	return config
}

func clientset(t *testing.T, config *rest.Config) elasticlientset.Interface {
	t.Helper()
	client, err := elasticlientset.NewForConfig(config)
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	return client
}

func elastiServices(t *testing.T, config *rest.Config, namespace string) elastiv1alpha1client.ElastiServiceInterface {
	t.Helper()
	return clientset(t, config).ElastiV1alpha1().ElastiServices(namespace)
}

// eventually waits until check returns nothing to complain about.
func eventually(t *testing.T, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	eventuallyWithin(t, waitTimeout, what, check)
}

func eventuallyWithin(t *testing.T, timeout time.Duration, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	complaint := ""
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, timeout, true, func(ctx context.Context) (bool, error) {
		now := check(ctx)
		// The error of a check that the timeout cancelled has no other cause.
		if complaint == "" || ctx.Err() == nil {
			complaint = now
		}
		return now == "", nil
	})
	if err != nil {
		t.Fatalf("waited %s in vain until %s: %s", timeout, what, complaint)
	}
}

// shortDirectory returns a new directory whose path leaves room for the names of sockets.
func shortDirectory(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "elasti-durability-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	return directory
}
