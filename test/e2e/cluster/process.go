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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SystemPods lists the pods of the product that a label selector selects and
// that are not on their way out.
func (c *Cluster) SystemPods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	pods, err := c.Host.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the pods with %s: %w", selector, err)
	}
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }), nil
}

// ResolverAddresses are the addresses of the resolver's pods.
func (c *Cluster) ResolverAddresses(ctx context.Context) ([]string, error) {
	pods, err := c.SystemPods(ctx, ResolverSelector)
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, pod := range pods {
		addresses = append(addresses, pod.Status.PodIP)
	}
	return addresses, nil
}

// KillContainer ends the processes of a pod's only container with SIGKILL. The
// node has to be this machine.
func KillContainer(pod *corev1.Pod) error {
	processes, err := ContainerProcesses(pod)
	if err != nil {
		return err
	}
	for _, process := range processes {
		if err := syscall.Kill(process, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing process %d of pod %s: %w", process, pod.Name, err)
		}
	}
	return nil
}

// ContainerProcesses finds the processes of a pod's only container on this
// machine, by the container's id in the names of their control groups.
func ContainerProcesses(pod *corev1.Pod) ([]int, error) {
	if len(pod.Status.ContainerStatuses) != 1 {
		return nil, fmt.Errorf("pod %s has %d containers, not one", pod.Name, len(pod.Status.ContainerStatuses))
	}
	_, container, found := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	if !found || container == "" {
		return nil, fmt.Errorf("the container of pod %s does not run", pod.Name)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var processes []int
	for _, group := range groups {
		content, err := os.ReadFile(group)
		// A process may have ended since its directory was listed.
		if err != nil || !strings.Contains(string(content), container) {
			continue
		}
		process, err := strconv.Atoi(filepath.Base(filepath.Dir(group)))
		if err != nil {
			return nil, err
		}
		processes = append(processes, process)
	}
	if len(processes) == 0 {
		return nil, fmt.Errorf("no process of pod %s runs on this machine", pod.Name)
	}
	return processes, nil
}
