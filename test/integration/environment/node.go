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
	"encoding/json"
	"fmt"
	"net/netip"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

const nodeName = "node"

// Node simulates the scheduler and the kubelet of one node. No containers run on it: pods
// change by its methods only. It is safe for concurrent use.
type Node struct {
	client kubernetes.Interface
	pods   atomic.Uint32
}

// newNode registers the node. Pods of nodes that do not exist get no endpoints.
func newNode(ctx context.Context, client kubernetes.Interface) (*Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the node: %w", err)
	}
	return &Node{client: client}, nil
}

// Run binds a pod to the node if needed, and makes it running and not ready. It returns the
// address of the pod, at which there is no server.
func (n *Node) Run(ctx context.Context, namespace, pod string) (string, error) {
	address := n.nextAddress()
	return address, n.RunAt(ctx, namespace, pod, address)
}

// RunAt is Run for a pod with an address of its own.
func (n *Node) RunAt(ctx context.Context, namespace, pod, address string) error {
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}
	if err := n.client.CoreV1().Pods(namespace).Bind(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("binding the pod %s/%s: %w", namespace, pod, err)
	}
	return n.patchStatus(ctx, namespace, pod, map[string]any{
		"phase":      corev1.PodRunning,
		"podIP":      address,
		"podIPs":     []corev1.PodIP{{IP: address}},
		"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
	})
}

// SetReady sets the readiness of a pod that runs.
func (n *Node) SetReady(ctx context.Context, namespace, pod string, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return n.patchStatus(ctx, namespace, pod, map[string]any{
		"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
	})
}

// Remove removes a pod, as a kubelet does when its containers have ended.
func (n *Node) Remove(ctx context.Context, namespace, pod string) error {
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := n.client.CoreV1().Pods(namespace).Delete(ctx, pod, options); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("removing the pod %s/%s: %w", namespace, pod, err)
	}
	return nil
}

func (n *Node) nextAddress() string { return NoAddress(n.pods.Add(1)) }

// NoAddress returns a valid address of an endpoint that no server can have: that of a
// multicast group, for which TCP connections fail in the kernel at once, on any machine.
// Packets to an unused unicast address would leave the machine by its default route, and
// a gateway may accept connections.
func NoAddress(number uint32) string {
	return netip.AddrFrom4([4]byte{232, 18, byte(number >> 8), byte(number)}).String()
}

func (n *Node) patchStatus(ctx context.Context, namespace, pod string, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("encoding the status of a pod: %w", err)
	}
	if _, err := n.client.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("writing the status of the pod %s/%s: %w", namespace, pod, err)
	}
	return nil
}
