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

// Package environmenttest is what packages of tests on a real control plane share: their
// TestMain, namespaces, and waiting.
//
// It knows nothing of ElastiServices. Begin with Run.
package environmenttest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// pollInterval is the pause between two checks of Eventually.
const pollInterval = 25 * time.Millisecond

// Run runs the tests of a package with the environment that start returns, which it puts
// into shared before the first of them, and returns the exit code of the process.
func Run(m *testing.M, shared **environment.Environment, start func(ctx context.Context) (*environment.Environment, error)) int {
	started, err := start(context.Background())
	if err != nil {
		fmt.Fprintf(os.Stderr, "starting the test environment: %v\n", err)
		return 1
	}
	*shared = started
	return End(started, m.Run())
}

// End stops the environment of tests that ended with an exit code, and returns that of the
// process. The logs are kept, and it prints where they are, unless both are zero.
func End(e *environment.Environment, code int) int {
	if err := e.Stop(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "stopping the test environment: %v\n", err)
		code = 1
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "the logs of the test environment are in %s\n", e.Directory)
		return code
	}
	if err := e.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// NewNamespace returns the name of a new namespace, which begins with prefix and is deleted
// after the test.
func NewNamespace(t *testing.T, e *environment.Environment, prefix string) string {
	t.Helper()
	namespace := NewDisposableNamespace(t, e, prefix)
	t.Cleanup(func() {
		ctx := context.Background()
		if err := e.Kubernetes.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting the namespace %s: %v", namespace, err)
		}
		// Pods that were bound wait for a kubelet, and their namespace with them.
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		if err := e.Kubernetes.CoreV1().Pods(namespace).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			t.Errorf("removing the pods of the namespace %s: %v", namespace, err)
		}
	})
	return namespace
}

// NewDisposableNamespace is as NewNamespace, of a namespace that the test deletes itself.
func NewDisposableNamespace(t *testing.T, e *environment.Environment, prefix string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}
	created, err := e.Kubernetes.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a namespace: %v", err)
	}
	return created.Name
}

// Eventually waits until check returns nothing to complain about, and fails the test after
// timeout with what was waited for and the last complaint.
func Eventually(t *testing.T, timeout time.Duration, what string, check func(ctx context.Context) (complaint string)) {
	t.Helper()
	complaint := ""
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, timeout, true, func(ctx context.Context) (bool, error) {
		now := check(ctx)
		// The error of a check that the timeout canceled has no other cause.
		if complaint == "" || ctx.Err() == nil {
			complaint = now
		}
		return now == "", nil
	})
	if err != nil {
		t.Fatalf("waited %s in vain until %s: %s", timeout, what, complaint)
	}
}
