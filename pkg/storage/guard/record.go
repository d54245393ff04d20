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

package guard

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Keys of the ConfigMap.
const (
	identityKey = "identity"
	backendKey  = "storage"
)

// Record records in a ConfigMap which store an installation uses.
type Record struct {
	// ConfigMaps is where the ConfigMap is.
	ConfigMaps corev1client.ConfigMapInterface
	// Namespace and Name are those of the ConfigMap. It is created when it does not exist.
	Namespace, Name string
	// Backend is what the store of this server is, for readers of the ConfigMap.
	Backend string
}

var _ Recorder = &Record{}

// String implements Recorder.
func (r *Record) String() string { return fmt.Sprintf("ConfigMap %s/%s", r.Namespace, r.Name) }

// Recorded implements Recorder.
func (r *Record) Recorded(ctx context.Context) (string, error) {
	found, err := r.read(ctx)
	if err != nil || found == nil {
		return "", err
	}
	return found.Data[identityKey], nil
}

// read returns the ConfigMap, or nil if there is none.
func (r *Record) read(ctx context.Context) (*corev1.ConfigMap, error) {
	found, err := r.ConfigMaps.Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading from %s which store this installation uses: %w: apply the manifests again, whose Role elasti-apiserver allows it", r, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading from %s which store this installation uses: %w", r, err)
	}
	return found, nil
}

// Record implements Recorder.
func (r *Record) Record(ctx context.Context, from, to string) error {
	found, err := r.read(ctx)
	if err != nil {
		return err
	}
	if found == nil {
		return r.create(ctx, from, to)
	}
	if found.Data[identityKey] != from {
		return fmt.Errorf("changing %s: %w", r, ErrChanged)
	}
	if found.Data == nil {
		found.Data = map[string]string{}
	}
	found.Data[identityKey], found.Data[backendKey] = to, r.Backend
	_, err = r.ConfigMaps.Update(ctx, found, metav1.UpdateOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("changing %s: %w", r, ErrChanged)
	}
	if err != nil {
		return fmt.Errorf("changing %s: %w", r, err)
	}
	return nil
}

// fieldManager is the same as v1alpha1.FieldManager.
const fieldManager = "elasti-apiserver"

func (r *Record) create(ctx context.Context, from, to string) error {
	if from != "" {
		return fmt.Errorf("changing %s: %w", r, ErrChanged)
	}
	_, err := r.ConfigMaps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": "elasti-apiserver"}},
		Data:       map[string]string{identityKey: to, backendKey: r.Backend},
	}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %s: %w", r, ErrChanged)
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", r, err)
	}
	return nil
}
