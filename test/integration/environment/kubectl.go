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

package environment

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	// establishedTimeout bounds the wait for CustomResourceDefinitions, and
	// establishedInterval is the pause between two attempts at it.
	establishedTimeout  = time.Minute
	establishedInterval = 100 * time.Millisecond
)

// Kubectl runs commands as one user in one namespace. It is safe for concurrent use.
type Kubectl struct {
	binary, kubeconfig, cache string
}

// NewKubectl returns a kubectl for the user of config. Its kubeconfig and
// caches live in directory.
func (e *Environment) NewKubectl(directory string, config *rest.Config, namespace string) (*Kubectl, error) {
	kubectl := &Kubectl{
		binary:     e.plane.tools.kubectl,
		kubeconfig: filepath.Join(directory, "kubeconfig"),
		cache:      filepath.Join(directory, "cache"),
	}
	return kubectl, writeKubeconfig(kubectl.kubeconfig, config, namespace)
}

// Kubeconfig is the file with the address of the cluster and the credentials.
func (k *Kubectl) Kubeconfig() string { return k.kubeconfig }

// Run runs one command with input as its standard input, and returns what it
// wrote. The error holds what it wrote to standard error.
func (k *Kubectl) Run(ctx context.Context, input string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, k.binary, append([]string{"--kubeconfig=" + k.kubeconfig, "--cache-dir=" + k.cache}, arguments...)...)
	command.Stdin = strings.NewReader(input)
	var output, complaints bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaints
	if err := command.Run(); err != nil {
		return output.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, strings.TrimSpace(complaints.String()))
	}
	return output.String(), nil
}

// AwaitEstablished waits until CustomResourceDefinitions are served, which definitions select
// as arguments of kubectl do. run runs kubectl. kubectl wait fails for a definition that has
// no conditions yet, and is run again then.
func AwaitEstablished(ctx context.Context, run func(ctx context.Context, arguments ...string) (string, error), definitions ...string) error {
	arguments := append([]string{"wait", "--for=condition=Established", "--timeout=" + establishedTimeout.String()}, definitions...)
	var last error
	err := wait.PollUntilContextTimeout(ctx, establishedInterval, establishedTimeout, true, func(ctx context.Context) (bool, error) {
		_, last = run(ctx, arguments...)
		if last != nil && strings.Contains(last.Error(), ".status.conditions accessor error") {
			return false, nil
		}
		return true, last
	})
	if last != nil {
		return last
	}
	return err
}
