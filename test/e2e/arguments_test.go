//go:build more || cycles || autoscalers

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
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// withArgument adds an argument to a Deployment of the product until the test ends.
func (s *scene) withArgument(name, argument string) {
	s.Helper()
	var before []string
	s.check(s.setArguments(s.ctx, name, func(arguments []string) []string {
		before = arguments
		return slices.Concat(arguments, []string{argument})
	}))
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), testTimeout)
		defer cancel()
		if err := s.setArguments(ctx, name, func([]string) []string { return before }); err != nil {
			s.Error(err)
		}
	})
}

// setArguments changes the arguments of a Deployment of the product and waits
// until it runs with them.
func (s *scene) setArguments(ctx context.Context, name string, change func(arguments []string) []string) error {
	deployments := s.Host.AppsV1().Deployments(cluster.SystemNamespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		deployment, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		container := &deployment.Spec.Template.Spec.Containers[0]
		container.Args = change(container.Args)
		_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("changing the arguments of %s: %w", name, err)
	}
	if err := s.AwaitRollout(ctx, name); err != nil {
		return err
	}
	if name == apiserverDeployment {
		return s.waitForAPI(ctx)
	}
	return nil
}
