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
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	resolverDeployment = "elasti-resolver"
	accessLogFlag      = "--access-log"
	// connectionsFlag has a number after it.
	connectionsFlag = "--max-connections="
	rolloutTimeout  = 2 * time.Minute
)

// withDefaultResolvers turns off what is off by default and may be turned on
// here for a demonstration: a line of log for every request. restore turns it
// on again if so.
func withDefaultResolvers(ctx context.Context, connected *cluster.Cluster) (restore func(), err error) {
	before, err := setResolverArguments(ctx, connected, func(arguments []string) []string {
		return slices.DeleteFunc(arguments, func(argument string) bool { return argument == accessLogFlag })
	})
	restore = func() {
		if slices.Contains(before, accessLogFlag) {
			restoreResolverArguments(ctx, connected, before)
		}
	}
	return restore, err
}

// withConnections has each resolver accept so many connections of one service. By
// default it accepts as many as it may have files for, and for each connection one more
// to a pod, which neither held requests nor idle connections have. It returns an error
// if the processes may not have enough files open for that.
func (b *bench) withConnections(ctx context.Context, number int) (restore func(), err error) {
	before, err := setResolverArguments(ctx, b.Cluster, func(arguments []string) []string {
		return withConnectionsFlag(arguments, number)
	})
	restore = func() {
		if before != nil {
			restoreResolverArguments(ctx, b.Cluster, before)
		}
	}
	if err != nil {
		return restore, err
	}
	processes, err := b.resolverProcesses(ctx)
	if err != nil {
		return restore, err
	}
	return restore, checkOpenFiles(append(processes, os.Getpid()), number)
}

// withConnectionsFlag adds or replaces the limit of connections. Some have to stay free:
// one service alone may have four fifths of all.
func withConnectionsFlag(arguments []string, number int) []string {
	others := slices.DeleteFunc(arguments, func(argument string) bool { return strings.HasPrefix(argument, connectionsFlag) })
	return append(others, fmt.Sprint(connectionsFlag, 2*number))
}

func restoreResolverArguments(ctx context.Context, connected *cluster.Cluster, before []string) {
	_, err := setResolverArguments(context.WithoutCancel(ctx), connected, func([]string) []string { return before })
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: restoring the resolvers:", err)
	}
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

// resolverOf returns the address of one resolver, and that with its proxy port for the
// port 80 of an application.
func (b *bench) resolverOf(ctx context.Context, app *cluster.Application) (resolver, proxy string, err error) {
	resolvers, err := b.ResolverAddresses(ctx)
	if err != nil {
		return "", "", err
	}
	if len(resolvers) == 0 {
		return "", "", errors.New("there is no resolver")
	}
	elastiService, err := b.Elasti.ElastiV1alpha1().ElastiServices(app.Namespace).Get(ctx, app.Name, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("reading ElastiService %s: %w", app.Name, err)
	}
	for _, port := range elastiService.Status.ProxyPorts {
		if port.Port == httpPort {
			return resolvers[0], net.JoinHostPort(resolvers[0], strconv.Itoa(int(port.ProxyPort))), nil
		}
	}
	return "", "", fmt.Errorf("ElastiService %s has no proxy port for port %d", app.Name, httpPort)
}
