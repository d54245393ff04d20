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

package e2e

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/truefoundry/elasti-apiserver/pkg/plugin"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// runPlugin runs the plugin of kubectl as the administrator in the namespace of the scene.
func (s *scene) runPlugin(ctx context.Context, arguments ...string) (string, error) {
	var out, progress bytes.Buffer
	command := plugin.NewCommand(genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &progress})
	command.SetArgs(append([]string{"--kubeconfig=" + s.Kubeconfig, "--namespace=" + s.namespace}, arguments...))
	err := command.ExecuteContext(ctx)
	return out.String() + progress.String(), err
}

// With real pods: an installation that serves has nothing wrong, and a wake that is waited
// for ends when the application can respond.
func TestPluginWakesAndFindsNothingWrong(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	output := ""
	// Other tests replace the pods of the installation meanwhile.
	err := wait.PollUntilContextCancel(s.ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		output, err = s.runPlugin(ctx, "doctor", "--installation-namespace=elasti-system")
		return err == nil && strings.Contains(output, "nothing is wrong with 1 ElastiServices"), nil
	})
	if err != nil {
		t.Fatalf("doctor says\n%s", output)
	}
	output, err = s.runPlugin(s.ctx, "wake", app.Name, "--wait")
	if err != nil || !strings.Contains(output, "is awake") {
		t.Errorf("wake --wait: %v\n%s", err, output)
	}
	s.awaitDirect(app)
	output, err = s.runPlugin(s.ctx, "sleep", app.Name, "--wait")
	if err != nil || !strings.Contains(output, "is asleep") {
		t.Errorf("sleep --wait: %v\n%s", err, output)
	}
	s.checkReplicas(app, 0)
	s.get(app, "/")
}
