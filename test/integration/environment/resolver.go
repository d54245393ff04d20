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
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// resolverReplicas is how many resolvers artifacts/deploy asks for.
const resolverReplicas = 2

// Resolver is a pod of the resolvers' Deployment. No program runs in it.
type Resolver struct {
	// Pod is the name of the pod, in SystemNamespace.
	Pod string
	// Address leads nowhere.
	Address string
}

// runResolvers waits for the pods of the resolvers' Deployment, lets them run,
// and lets the first one be ready.
func runResolvers(ctx context.Context, client kubernetes.Interface, node *Node) ([]Resolver, error) {
	var pods *corev1.PodList
	err := wait.PollUntilContextTimeout(ctx, pollInterval, startPatience, true, func(ctx context.Context) (bool, error) {
		var err error
		pods, err = client.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + ResolverName})
		return err == nil && len(pods.Items) == resolverReplicas, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for %d pods of the resolvers' Deployment: %w", resolverReplicas, err)
	}
	resolvers := make([]Resolver, 0, resolverReplicas)
	for i := range pods.Items {
		name := pods.Items[i].Name
		address, err := node.Run(ctx, SystemNamespace, name)
		if err != nil {
			return nil, err
		}
		resolvers = append(resolvers, Resolver{Pod: name, Address: address})
	}
	return resolvers, node.SetReady(ctx, SystemNamespace, resolvers[0].Pod, true)
}
