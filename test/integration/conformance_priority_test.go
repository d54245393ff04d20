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
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiv1alpha1client "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// Both API servers that a request passes have a header in the response with the
// FlowSchema of the request.
func TestWakesAndTheComponentsHaveTheirOwnFlowSchemas(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waker := newServiceAccount(t, namespace, "waker", mayWake)
	resolver, err := shared.AsServiceAccount(t.Context(), environment.SystemNamespace, environment.ResolverName)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		flowSchema string
		config     *rest.Config
	}{
		{"elasti-wakes", waker},
		{"elasti-resolver-wakes", resolver},
	} {
		t.Run(test.flowSchema, func(t *testing.T) {
			want, err := shared.Kubernetes.FlowcontrolV1().FlowSchemas().Get(t.Context(), test.flowSchema, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			client, err := rest.HTTPClientFor(test.config)
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, test.config.Host+wakePath(namespace, "app"), http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != http.StatusCreated {
				t.Fatalf("waking returns %s, want 201", response.Status)
			}
			classified := response.Header.Values(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
			if len(classified) != 2 {
				t.Errorf("%d servers have classified the wake, want that of the cluster and elasti-apiserver", len(classified))
			}
			for _, uid := range classified {
				if uid != string(want.UID) {
					t.Errorf("it was classified to the FlowSchema with UID %s, want %s", uid, want.UID)
				}
			}
		})
	}
}

// A wake waits for calls of the server to the API server that forwarded it. These calls
// must not wait for seats that wakes occupy, also when there are more wakes than seats.
func TestCallsOfTheServerDoNotWaitForWakes(t *testing.T) {
	// The number is higher than the seats of a priority level, including borrowed ones, and
	// low enough for one connection.
	const readSeats, writeSeats, wakes = 60, 40, 90
	crowded, err := shared.StartBeside(t.Context(), "crowded",
		fmt.Sprintf("--max-requests-inflight=%d", readSeats), fmt.Sprintf("--max-mutating-requests-inflight=%d", writeSeats))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := crowded.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	resolver := elastiClientOf(t, crowded, environment.ResolverName)
	identity, err := crowded.AsServiceAccount(t.Context(), environment.SystemNamespace, environment.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	server, err := kubernetes.NewForConfig(identity)
	if err != nil {
		t.Fatal(err)
	}

	resume := suspend(t, crowded.Server.Process())
	var callers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer func() {
		cancel()
		resume()
		callers.Wait()
	}()
	for range wakes {
		callers.Go(func() {
			_, err := resolver.Wake(ctx, "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{})
			if ctx.Err() == nil {
				t.Errorf("a wake ended while the server was suspended: %v", err)
			}
		})
	}
	eventually(t, "wakes wait for a seat", func(ctx context.Context) string {
		metrics, err := crowded.Kubernetes.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			return err.Error()
		}
		return complainUnlessQueued(string(metrics))
	})

	called, stop := context.WithTimeout(t.Context(), waitTimeout)
	defer stop()
	if _, err := server.CoreV1().Namespaces().Get(called, metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		t.Errorf("a call of the server while wakes wait: %v", err)
	}
}

// elastiClientOf returns a client of a ServiceAccount of the product in another
// environment.
func elastiClientOf(t *testing.T, other *environment.Environment, account string) elastiv1alpha1client.ElastiServiceInterface {
	t.Helper()
	config, err := other.AsServiceAccount(t.Context(), environment.SystemNamespace, account)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return elastiClient(t, config).ElastiV1alpha1().ElastiServices(metav1.NamespaceDefault)
}

// suspend stops a process until resume is called, at the latest at the end of the
// test.
func suspend(t *testing.T, process *environment.Process) (resume func()) {
	t.Helper()
	if err := syscall.Kill(process.PID(), syscall.SIGSTOP); err != nil {
		t.Fatalf("suspending the server: %v", err)
	}
	resume = sync.OnceFunc(func() {
		if err := syscall.Kill(process.PID(), syscall.SIGCONT); err != nil {
			t.Errorf("resuming the server: %v", err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// complainUnlessQueued checks that requests to elasti-apiserver wait for a seat.
func complainUnlessQueued(metrics string) string {
	const queued = `apiserver_flowcontrol_current_inqueue_requests{flow_schema="elasti-`
	var found []string
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, queued) {
			continue
		}
		if !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			return ""
		}
		found = append(found, line)
	}
	return fmt.Sprintf("no request to elasti-apiserver waits: %q", found)
}
