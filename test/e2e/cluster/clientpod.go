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
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// GetFromPod sends one GET request from a new pod of the namespace, and returns the
// output of the client: the status line and the body. A status other than 200 is an
// error.
func (c *Cluster) GetFromPod(ctx context.Context, namespace, url string) (string, error) {
	const labelKey, labelValue = "app", "client"
	pod, err := c.Host.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "client-", Labels: map[string]string{labelKey: labelValue}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			RestartPolicy:                corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name:            "client",
				Image:           c.image,
				ImagePullPolicy: corev1.PullIfNotPresent,
				Args:            []string{"-get=" + url},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("creating a pod for a client: %w", err)
	}
	var phase corev1.PodPhase
	_, err = c.AwaitPods(ctx, namespace, labelKey+"="+labelValue, "the client's pod has ended", func(pods []*corev1.Pod) bool {
		for _, found := range pods {
			if found.Name == pod.Name {
				phase = found.Status.Phase
			}
		}
		return phase == corev1.PodSucceeded || phase == corev1.PodFailed
	})
	if err != nil {
		return "", err
	}
	output, err := c.Host.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading what the client printed: %w", err)
	}
	if phase != corev1.PodSucceeded {
		return "", fmt.Errorf("the client in pod %s failed: %s", pod.Name, output)
	}
	return string(output), nil
}
