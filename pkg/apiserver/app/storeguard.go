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

package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/apiserver/options"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/guard"
)

// evidencePage is how many private Services are read at a time.
const evidencePage = 500

// newStoreGuard returns what keeps the server from working on another store than the one that
// its installation uses.
func newStoreGuard(o *options.Options, host kubernetes.Interface, identity guard.Store) *guard.Guard {
	namespace := o.ServingCertificate.Namespace
	return guard.New(guard.Options{
		Store: identity,
		Recorder: &guard.Record{
			ConfigMaps: host.CoreV1().ConfigMaps(namespace),
			Namespace:  namespace,
			Name:       o.Storage.Record,
			Backend:    string(o.Storage.Backend),
		},
		Accept:   o.Storage.AcceptNewStore,
		Evidence: (&evidence{host: host, namespace: namespace, namespaces: o.Controller.Namespaces}).find,
	})
}

// evidence finds out whether ElastiServices were managed in a cluster.
type evidence struct {
	host kubernetes.Interface
	// namespace is that of the server, and namespaces those that it works on, all if
	// there are none.
	namespace  string
	namespaces []string
}

// find returns a description of a private Service that the server made, or an empty string.
// A Service without the server's signature does not count.
func (e *evidence) find(ctx context.Context) (string, error) {
	secret, err := e.host.CoreV1().Secrets(e.namespace).Get(ctx, signingKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the key of signatures from Secret %q: %w", signingKeySecret, err)
	}
	signer, err := signature.New(secret.Data[signature.SecretKey])
	if err != nil {
		// Nothing can be signed with it.
		return "", nil //nolint:nilerr // There is no evidence then.
	}
	namespaces := e.namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		found, err := e.findIn(ctx, namespace, signer)
		if err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}

func (e *evidence) findIn(ctx context.Context, namespace string, signer *signature.Signer) (string, error) {
	private := metav1.ListOptions{LabelSelector: labels.Set{v1alpha1.LabelRole: v1alpha1.RolePrivate}.String(), Limit: evidencePage}
	for {
		list, err := e.host.CoreV1().Services(namespace).List(ctx, private)
		if err != nil {
			return "", fmt.Errorf("listing the private Services: %w", err)
		}
		if found := firstMade(list.Items, signer); found != nil {
			return fmt.Sprintf("it has the private Service %s/%s", found.Namespace, found.Name), nil
		}
		if private.Continue = list.Continue; private.Continue == "" {
			return "", nil
		}
	}
}

// firstMade returns the first Service that the server made, or nil.
func firstMade(services []corev1.Service, signer *signature.Signer) *corev1.Service {
	for i := range services {
		if signer.Made(&services[i].ObjectMeta) {
			return &services[i]
		}
	}
	return nil
}
