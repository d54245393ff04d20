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

package signature

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

const (
	// SecretKey is the key of the Secret that holds the key of signatures.
	SecretKey = "key"
	// loadTimeout ends an attempt to load the key that hangs.
	loadTimeout = 10 * time.Second
	// loadRetry is the pause between two attempts.
	loadRetry = 2 * time.Second
)

// Source makes signers with the key of the installation, which all replicas share
// through a Secret. It is safe for concurrent use.
type Source struct {
	// Secrets is where the Secret is.
	Secrets corev1client.SecretInterface
	// Name is the name of the Secret. It is created when it does not exist.
	Name string
	// Clock is the time.
	Clock clock.Clock

	mu sync.Mutex
	// loaded is the signer of the key that was loaded last. Guarded by mu.
	loaded *Signer
}

// Await returns a signer, and waits until the key can be loaded. It returns an
// error when ctx ends first.
func (s *Source) Await(ctx context.Context) (*Signer, error) {
	for {
		signer, err := s.Load(ctx)
		if err == nil {
			return signer, nil
		}
		klog.FromContext(ctx).Error(err, "Failed to load the key of signatures, will retry", "retryIn", loadRetry)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.Clock.After(loadRetry):
		}
	}
}

// Load returns a signer with the key of the Secret, or with the one that was
// loaded before when that cannot be read any more: during an uninstallation the
// Secret may be deleted first.
func (s *Source) Load(ctx context.Context) (*Signer, error) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	signer, err := s.load(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.loaded != nil {
			return s.loaded, nil
		}
		return nil, err
	}
	s.loaded = signer
	return signer, nil
}

func (s *Source) load(ctx context.Context) (*Signer, error) {
	secret, err := s.Secrets.Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if secret, err = s.create(ctx); apierrors.IsAlreadyExists(err) {
			// Another replica was faster.
			secret, err = s.Secrets.Get(ctx, s.Name, metav1.GetOptions{})
		}
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("reading the key of signatures from Secret %q: %w: apply the manifests again, whose Role elasti-apiserver allows it", s.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the key of signatures from Secret %q: %w", s.Name, err)
	}
	signer, err := New(secret.Data[SecretKey])
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the Secret %q has no usable %s: delete it, a new one is made then", s.Name, SecretKey), err)
	}
	return signer, nil
}

func (s *Source) create(ctx context.Context) (*corev1.Secret, error) {
	key := make([]byte, keyBytes)
	// Reading random bytes never fails.
	_, _ = rand.Read(key)
	return s.Secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy}},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{SecretKey: key},
	}, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager})
}
