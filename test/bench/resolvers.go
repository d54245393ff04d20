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

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	resolverDeployment = "elasti-resolver"
	accessLogFlag      = "--access-log"
	rolloutTimeout     = 2 * time.Minute
)

// withDefaultResolvers turns off what is off by default and may be turned on
// here for a demonstration: a line of log for every request. restore turns it
// on again if so.
func withDefaultResolvers(ctx context.Context, connected *cluster.Cluster) (restore func(), err error) {
	before, err := setResolverArguments(ctx, connected, func(arguments []string) []string {
		return slices.DeleteFunc(arguments, func(argument string) bool { return argument == accessLogFlag })
	})
	restore = func() {
		if !slices.Contains(before, accessLogFlag) {
			return
		}
		_, err := setResolverArguments(context.WithoutCancel(ctx), connected, func([]string) []string { return before })
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: restoring the resolvers:", err)
		}
	}
	return restore, err
}

// setResolverArguments changes the command line of the resolvers, waits until
// all of them have it, and returns what it was.
func setResolverArguments(ctx context.Context, connected *cluster.Cluster, change func([]string) []string) (before []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, rolloutTimeout)
	defer cancel()
	deployments := connected.Host.AppsV1().Deployments(cluster.SystemNamespace)
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		deployment, err := deployments.Get(ctx, resolverDeployment, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(deployment.Spec.Template.Spec.Containers) == 0 {
			return errors.New("it has no container")
		}
		container := &deployment.Spec.Template.Spec.Containers[0]
		before = slices.Clone(container.Args)
		container.Args = change(slices.Clone(before))
		_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("changing Deployment %s: %w", resolverDeployment, err)
	}
	return before, connected.AwaitRollout(ctx, resolverDeployment)
}
