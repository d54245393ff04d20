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

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StoreRecordName is the ConfigMap in which the server behind the APIService records which
// store it uses.
const StoreRecordName = "elasti-apiserver-store"

// RecordedStore returns the identity of the store that is recorded in a ConfigMap.
func (e *Environment) RecordedStore(ctx context.Context, record string) (string, error) {
	found, err := e.Kubernetes.CoreV1().ConfigMaps(SystemNamespace).Get(ctx, record, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading the record of the store: %w", err)
	}
	return found.Data["identity"], nil
}

// NewStoreRecord lets servers record in a ConfigMap of their own which store they use, so
// that it may be another one than that of Server. It returns their flag for it.
func (e *Environment) NewStoreRecord(ctx context.Context, name string) (flag string, err error) {
	meta := metav1.ObjectMeta{Name: name, Namespace: SystemNamespace}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name}, Verbs: []string{"get", "update"},
	}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: SystemNamespace, Name: ServerName}},
	}
	if _, err := e.Kubernetes.RbacV1().Roles(SystemNamespace).Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("creating the role of the record %s: %w", name, err)
	}
	if _, err := e.Kubernetes.RbacV1().RoleBindings(SystemNamespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("binding the role of the record %s: %w", name, err)
	}
	return "--store-record=" + name, nil
}
