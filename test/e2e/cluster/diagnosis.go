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
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// logLines is how much of each log a diagnosis shows.
const logLines = 60

// Diagnose returns the information to find the cause of a failed test: the objects
// and Events of the namespace, and the product's logs since a time. Errors are in the
// place of what could not be read.
func (c *Cluster) Diagnose(ctx context.Context, namespace string, since time.Time) string {
	var text strings.Builder
	section(&text, "ElastiServices", func() (string, error) {
		list, err := c.Elasti.ElastiV1alpha1().ElastiServices(namespace).List(ctx, metav1.ListOptions{})
		return render(pointers(list.Items)), err
	})
	section(&text, "Deployments", func() (string, error) {
		list, err := c.Host.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		for i := range list.Items {
			list.Items[i].Spec.Template = corev1.PodTemplateSpec{}
		}
		return render(pointers(list.Items)), err
	})
	section(&text, "EndpointSlices", func() (string, error) {
		list, err := c.Host.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
		return render(pointers(list.Items)), err
	})
	section(&text, "Where kube-proxy leads", func() (string, error) { return rulesOf(ctx, namespace) })
	section(&text, "Pods", func() (string, error) { return c.podTable(ctx, namespace) })
	section(&text, "Events", func() (string, error) { return c.eventTable(ctx, namespace) })
	section(&text, "Pods of "+SystemNamespace, func() (string, error) { return c.podTable(ctx, SystemNamespace) })
	for _, selector := range []string{APIServerSelector, ResolverSelector} {
		pods, err := c.SystemPods(ctx, selector)
		if err != nil {
			fmt.Fprintln(&text, err)
		}
		for _, pod := range pods {
			section(&text, "Log of "+pod.Name, func() (string, error) {
				log, err := c.Host.CoreV1().Pods(SystemNamespace).GetLogs(pod.Name, &corev1.PodLogOptions{
					SinceTime: ptr.To(metav1.NewTime(since)), TailLines: ptr.To[int64](logLines),
				}).DoRaw(ctx)
				return string(log), err
			})
		}
	}
	return text.String()
}

// rulesOf returns the rules of this machine, as kube-proxy has written them in
// its mode nftables, that name a namespace: an address without a rule does not
// respond, whatever the EndpointSlices say.
func rulesOf(ctx context.Context, namespace string) (string, error) {
	var text strings.Builder
	for _, family := range []string{"ip", "ip6"} {
		rules, err := exec.CommandContext(ctx, "nft", "list", "table", family, "kube-proxy").Output()
		if err != nil {
			return text.String(), fmt.Errorf("listing the rules of kube-proxy: %w", err)
		}
		for line := range strings.Lines(string(rules)) {
			if strings.Contains(line, "-"+namespace+"/") {
				text.WriteString(strings.TrimSpace(line) + "\n")
			}
		}
	}
	return text.String(), nil
}

func section(text *strings.Builder, title string, content func() (string, error)) {
	shown, err := content()
	if err != nil {
		shown = err.Error()
	}
	fmt.Fprintf(text, "== %s\n%s\n", title, strings.TrimRight(shown, "\n"))
}

func (c *Cluster) podTable(ctx context.Context, namespace string) (string, error) {
	list, err := c.Host.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	var text strings.Builder
	for i := range list.Items {
		pod := &list.Items[i]
		fmt.Fprintf(&text, "%s %s ready=%t deleted=%t %s", pod.Name, pod.Status.Phase, PodIsReady(pod), pod.DeletionTimestamp != nil, pod.Status.PodIP)
		for _, container := range pod.Status.ContainerStatuses {
			fmt.Fprintf(&text, " restarts=%d", container.RestartCount)
			if waiting := container.State.Waiting; waiting != nil {
				fmt.Fprintf(&text, " waiting=%s", waiting.Reason)
			}
		}
		text.WriteString("\n")
	}
	return text.String(), err
}

func (c *Cluster) eventTable(ctx context.Context, namespace string) (string, error) {
	list, err := c.Host.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
	var text strings.Builder
	for _, event := range list.Items {
		fmt.Fprintf(&text, "%s %s/%s %s: %s\n", event.CreationTimestamp.Format(time.TimeOnly), event.Regarding.Kind, event.Regarding.Name, event.Reason, event.Note)
	}
	return text.String(), err
}

func pointers[T any](items []T) []*T {
	var result []*T
	for i := range items {
		result = append(result, &items[i])
	}
	return result
}
