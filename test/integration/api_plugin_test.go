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
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/plugin"
)

// screen is what a command has written. It is safe for concurrent use.
type screen struct {
	mu      sync.Mutex
	written bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// elastiPlugin runs the plugin of kubectl as a user in a namespace.
type elastiPlugin struct {
	t          *testing.T
	kubeconfig string
}

func newPlugin(t *testing.T, namespace string) *elastiPlugin {
	t.Helper()
	return &elastiPlugin{t, newKubectl(t, namespace).Kubeconfig()}
}

// start runs a command until it ends, and returns what it writes meanwhile.
func (p *elastiPlugin) start(ctx context.Context, arguments ...string) (out, progress *screen, ended <-chan error) {
	p.t.Helper()
	out, progress = &screen{}, &screen{}
	command := plugin.NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: progress})
	command.SetArgs(append([]string{"--kubeconfig=" + p.kubeconfig}, arguments...))
	result := make(chan error, 1)
	go func() { result <- command.ExecuteContext(ctx) }()
	return out, progress, result
}

// run runs a command that is to succeed, and returns what it wrote.
func (p *elastiPlugin) run(arguments ...string) string {
	p.t.Helper()
	out, progress, ended := p.start(p.t.Context(), arguments...)
	if err := <-ended; err != nil {
		p.t.Errorf("kubectl elasti %s: %v\n%s", strings.Join(arguments, " "), err, progress)
	}
	return out.String()
}

func (p *elastiPlugin) expect(want string, arguments ...string) {
	p.t.Helper()
	if got := p.run(arguments...); !strings.Contains(got, want) {
		p.t.Errorf("kubectl elasti %s does not show %q:\n%s", strings.Join(arguments, " "), want, got)
	}
}

// From the wake of one to the night in which everything is to stay awake.
func TestPluginShowsWakesAndSuspends(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	elasti := newPlugin(t, namespace)
	eventually(t, "status shows that the target sleeps", func(context.Context) string {
		if got := elasti.run("status", "app"); !strings.Contains(got, "asleep") {
			return got
		}
		return ""
	})
	elasti.expect(namespace+"/app would be woken", "wake-all", "--dry-run")
	if desiredReplicas(t, namespace) != 0 {
		t.Error("a dry run woke the target")
	}

	out, progress, ended := elasti.start(t.Context(), "wake", "app", "--wait", "--reason=a test")
	waitForDesired(t, namespace, 1)
	eventually(t, "the progress is shown", func(context.Context) string {
		if !strings.Contains(progress.String(), "0 of 1 pods are ready") {
			return progress.String()
		}
		return ""
	})
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	if err := <-ended; err != nil || !strings.Contains(out.String(), "app woken, 1 replicas") || !strings.Contains(out.String(), "app is awake") {
		t.Errorf("wake --wait: %v\n%s%s", err, out, progress)
	}
	eventually(t, "status shows that the target is awake, and what woke it", func(context.Context) string {
		if got := elasti.run("status", "-o", "wide"); !strings.Contains(got, "awake") || !strings.Contains(got, "a test") {
			return got
		}
		return ""
	})
	elasti.expect("app is awake already, 1 replicas, 1 ready", "wake", "app")
	var list v1alpha1.ElastiServiceList
	if err := json.Unmarshal([]byte(elasti.run("status", "--output=json")), &list); err != nil || len(list.Items) != 1 || list.Items[0].Name != "app" {
		t.Errorf("status as json has %+v (error: %v)", list.Items, err)
	}

	elasti.expect("app suspended", "suspend", "--all")
	if found := readElastiService(t, namespace); found.Annotations[v1alpha1.AnnotationDryRun] != "true" {
		t.Errorf("suspended it has the annotations %v", found.Annotations)
	}
	elasti.expect("app resumed", "resume", "app")
	if found := readElastiService(t, namespace); found.Annotations[v1alpha1.AnnotationDryRun] != "" {
		t.Errorf("resumed it has the annotations %v", found.Annotations)
	}

	elasti.expect("app is asleep", "sleep", "app", "--wait")
	if desiredReplicas(t, namespace) != 0 {
		t.Error("sleep --wait ended while the target had replicas")
	}
	elasti.expect(namespace+"/app woken", "wake-all")
}

func TestPluginFollowsAndWaitsNoLongerThanItsTimeout(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	elasti := newPlugin(t, namespace)
	ctx, stop := context.WithCancel(t.Context())
	out, _, ended := elasti.start(ctx, "status", "--watch")
	eventually(t, "an empty table is shown", func(context.Context) string {
		if !strings.Contains(out.String(), "There is no ElastiService here.") {
			return out.String()
		}
		return ""
	})
	createElastiService(t, namespace, newElastiService("app"))
	eventually(t, "the table has what was created", func(context.Context) string {
		if !strings.Contains(out.String(), "asleep") {
			return out.String()
		}
		return ""
	})
	stop()
	if err := <-ended; err != nil {
		t.Errorf("status --watch ended with %v", err)
	}

	_, progress, ended := elasti.start(t.Context(), "wake", "app", "--wait", "--timeout=1s")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "0 of 1 pods are ready") {
		t.Errorf("waiting for a pod that does not come ended with %v\n%s", err, progress)
	}
	// What fails does not keep the others from being woken.
	out, _, ended = elasti.start(t.Context(), "wake", "missing", "app")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "missing") || !strings.Contains(out.String(), "/app is awake already") {
		t.Errorf("waking one that is missing and another ended with %v\n%s", err, out)
	}
}

func TestPluginSaysWhatIsWrong(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	waitForReason(t, namespace, v1alpha1.ConditionServiceFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	elasti := newPlugin(t, namespace)
	out, _, ended := elasti.start(t.Context(), "doctor", "--installation-namespace="+namespace)
	err := <-ended
	// The server runs as a process here, not as a Deployment.
	for _, want := range []string{"installation: ", namespace + "/app: ServiceFound: NotFound"} {
		if err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("doctor does not show %q (error: %v):\n%s", want, err, out)
		}
	}
}
