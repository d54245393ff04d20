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
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
)

const (
	// SystemNamespace is where the components are deployed.
	SystemNamespace = "elasti-system"
	// ServerName is the name of the API server's Service and ServiceAccount.
	ServerName = "elasti-apiserver"
	// ResolverName is the name of the resolvers' Service and ServiceAccount.
	ResolverName = "elasti-resolver"
	// APIServiceName is the name of the APIService.
	APIServiceName = "v1alpha1.elasti.truefoundry.com"

	fieldManager = "integration-test"
)

// applyManifests applies what `kubectl apply -k artifacts/deploy` would, save
// for the pod of the API server.
func (e *Environment) applyManifests(ctx context.Context, kubectl string) error {
	folder, err := e.kustomization()
	if err != nil {
		return err
	}
	rendered, err := exec.CommandContext(ctx, kubectl, "kustomize", folder).Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return fmt.Errorf("rendering %s: %w", folder, err)
	}
	client, err := dynamic.NewForConfig(e.Admin)
	if err != nil {
		return fmt.Errorf("making the client that applies manifests: %w", err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(e.Admin)
	if err != nil {
		return fmt.Errorf("making the discovery client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient))
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(rendered), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading the rendered %s: %w", folder, err)
		}
		if !withoutNode(object) {
			continue
		}
		if err := apply(ctx, client, mapper, object); err != nil {
			return err
		}
	}
}

// withoutNode reports whether the object is applied without a node for the API server. It
// removes the selector of its Service, whose endpoint is a process.
func withoutNode(object *unstructured.Unstructured) bool {
	if object.GetName() != ServerName {
		return true
	}
	switch object.GetKind() {
	case "Deployment":
		return false
	case "Service":
		unstructured.RemoveNestedField(object.Object, "spec", "selector")
	}
	return true
}

func apply(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	gvk := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return fmt.Errorf("finding the resource of %s: %w", gvk, err)
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	// The namespace kube-system is created shortly after the API server is ready.
	var last error
	err = wait.PollUntilContextTimeout(ctx, pollInterval, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("applying the %s %s: %w", gvk.Kind, object.GetName(), last)
	}
	return nil
}

// publishEndpoint sets the endpoint of the Service of the API server to a process, as
// the EndpointSlice controller does for a pod. Every change also makes the aggregator
// check again whether the server is available.
func publishEndpoint(ctx context.Context, client kubernetes.Interface, name, address string, port int, ready bool) error {
	slice := discoveryv1ac.EndpointSlice(name, SystemNamespace).
		WithLabels(map[string]string{discoveryv1.LabelServiceName: ServerName, discoveryv1.LabelManagedBy: fieldManager}).
		WithAddressType(discoveryv1.AddressTypeIPv4).
		WithEndpoints(discoveryv1ac.Endpoint().WithAddresses(address).WithConditions(discoveryv1ac.EndpointConditions().WithReady(ready))).
		WithPorts(discoveryv1ac.EndpointPort().WithName("https").WithProtocol(corev1.ProtocolTCP).WithPort(int32(port)))
	_, err := client.DiscoveryV1().EndpointSlices(SystemNamespace).Apply(ctx, slice, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("publishing the endpoint of the API server: %w", err)
	}
	return nil
}
