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
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"
)

const (
	apiPriority = 100
	// apiPort is the port of the Service of an API; any will do.
	apiPort = 443
)

// RegisterAPI has the cluster serve a version of an API group from a server at
// an address of this machine, and waits until it does. Its certificate is not
// verified. The returned function takes the API out of the cluster again, and is
// to be called before the namespace, which the Service of the API is in, is
// deleted: namespaces are not deleted while an API does not respond.
func (c *Cluster) RegisterAPI(ctx context.Context, namespace, group, version, address string) (remove func(context.Context) error, err error) {
	aggregator, err := apiregistration.NewForConfig(rest.CopyConfig(c.Config))
	if err != nil {
		return nil, fmt.Errorf("making a client of APIServices: %w", err)
	}
	name := version + "." + group
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "api-"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: apiPort}}},
	}
	if service, err = c.Host.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating a Service for the API %s: %w", name, err)
	}
	slice, err := sliceOf(service, address)
	if err != nil {
		return nil, err
	}
	if _, err := c.Host.DiscoveryV1().EndpointSlices(namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the endpoint of the API %s: %w", name, err)
	}
	apiServices := aggregator.ApiregistrationV1().APIServices()
	_, err = apiServices.Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: group, Version: version, GroupPriorityMinimum: apiPriority, VersionPriority: apiPriority,
			Service:               &apiregistrationv1.ServiceReference{Namespace: namespace, Name: service.Name, Port: ptr.To[int32](apiPort)},
			InsecureSkipTLSVerify: true,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating the APIService %s: %w", name, err)
	}
	remove = func(ctx context.Context) error {
		if err := apiServices.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting the APIService %s: %w", name, err)
		}
		return nil
	}
	source := named(aggregator.ApiregistrationV1().RESTClient(), "apiservices", metav1.NamespaceAll, name)
	_, err = await(ctx, source, "the API "+name+" is available", func(found []*apiregistrationv1.APIService) bool {
		for _, apiService := range found {
			for _, condition := range apiService.Status.Conditions {
				if condition.Type == apiregistrationv1.Available {
					return condition.Status == apiregistrationv1.ConditionTrue
				}
			}
		}
		return false
	})
	if err != nil {
		return nil, errors.Join(err, remove(context.WithoutCancel(ctx)))
	}
	return remove, nil
}

func sliceOf(service *corev1.Service, address string) (*discoveryv1.EndpointSlice, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return nil, err
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: service.Name + "-",
			Labels:       map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{host},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(number))}},
	}, nil
}
