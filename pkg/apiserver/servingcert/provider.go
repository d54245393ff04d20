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

// Package servingcert gives the API server a serving certificate that the
// aggregator trusts, without cert-manager.
//
// A certificate authority and a serving certificate live in a Secret that all
// replicas share; the bundle of authorities is published in the APIService.
// Before a serving certificate of a new authority is used, the bundle that
// contains it has been published for a day, and the old authority stays in the
// bundle until it expires, so that no connection of the aggregator ever fails
// over a renewal.
//
// It knows the aggregator as a BundlePublisher only. Begin with Provider.
package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	authorityKeyKey  = "ca.key"
	authorityCertKey = "ca.crt"

	// checkInterval is how often the certificates are checked.
	checkInterval = time.Minute
	// retryInterval is how soon a failed check is repeated.
	retryInterval = 10 * time.Second
)

// BundlePublisher makes the aggregator trust a bundle of certificate authorities.
type BundlePublisher interface {
	// Publish is called with the bundle in PEM. Publishing what is published
	// already must do nothing.
	Publish(ctx context.Context, bundle []byte) error
}

// Options is what a Provider needs. All fields are required.
type Options struct {
	// Secrets is where the Secret lives.
	Secrets corev1client.SecretInterface
	// SecretName is the name of the Secret. It is created when it does not exist.
	SecretName string
	// DNSNames are the names that the certificate is valid for.
	DNSNames []string
	// Publisher publishes the bundle of authorities to the aggregator.
	Publisher BundlePublisher
	// Clock is the time by which certificates are renewed.
	Clock clock.Clock
}

// Provider provides the serving certificate and keeps it valid. It is safe for
// concurrent use.
type Provider struct {
	options Options

	mu        sync.Mutex
	cert      []byte
	key       []byte
	listeners []dynamiccertificates.Listener
}

var (
	_ dynamiccertificates.CertKeyContentProvider = &Provider{}
	_ dynamiccertificates.ControllerRunner       = &Provider{}
)

// New makes a Provider. RunOnce must succeed before it has a certificate.
func New(options Options) *Provider {
	return &Provider{options: options}
}

// Name identifies the provider in logs.
func (p *Provider) Name() string { return "self-managed-serving-cert" }

// CurrentCertKeyContent returns the certificate and its key in PEM.
func (p *Provider) CurrentCertKeyContent() (cert, key []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cert, p.key
}

// AddListener has listener notified of every new certificate.
func (p *Provider) AddListener(listener dynamiccertificates.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners = append(p.listeners, listener)
}

// RunOnce makes or reads the certificate. A failure to publish the bundle is
// logged, not returned: the server can start, and Run publishes again.
func (p *Provider) RunOnce(ctx context.Context) error {
	bundle, err := p.loadOrRenew(ctx)
	if err != nil {
		return err
	}
	if err := p.options.Publisher.Publish(ctx, bundle); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to publish the certificate authority, will retry")
	}
	return nil
}

// Run keeps the certificate valid and published until ctx ends.
func (p *Provider) Run(ctx context.Context, _ int) {
	for {
		pause := checkInterval
		if err := p.check(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to check the serving certificate, will retry", "retryIn", retryInterval)
			pause = retryInterval
		}
		select {
		case <-ctx.Done():
			return
		case <-p.options.Clock.After(wait.Jitter(pause, 0.1)):
		}
	}
}

func (p *Provider) check(ctx context.Context) error {
	bundle, err := p.loadOrRenew(ctx)
	if err != nil {
		return err
	}
	return p.options.Publisher.Publish(ctx, bundle)
}

// loadOrRenew reads the Secret, renews in it what is due, takes over its
// certificate, and returns the bundle of authorities.
func (p *Provider) loadOrRenew(ctx context.Context) (bundle []byte, err error) {
	err = retry.OnError(retry.DefaultBackoff, isRaced, func() error {
		bundle, err = p.tryLoadOrRenew(ctx)
		return err
	})
	return bundle, err
}

// isRaced reports whether another replica changed the Secret at the same time: what
// it wrote is what counts.
func isRaced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

func (p *Provider) tryLoadOrRenew(ctx context.Context) ([]byte, error) {
	secret, err := p.options.Secrets.Get(ctx, p.options.SecretName, metav1.GetOptions{})
	exists := !apierrors.IsNotFound(err)
	if err != nil && exists {
		return nil, fmt.Errorf("reading the Secret %s with the serving certificate: %w", p.options.SecretName, withRole(err, systemRole))
	}
	if !exists {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: p.options.SecretName}, Type: corev1.SecretTypeTLS}
	}
	var current *pair
	if exists {
		if current, err = parsePair(secret); err != nil {
			// A Secret that cannot be parsed is replaced.
			klog.FromContext(ctx).Info("Replacing the Secret with the serving certificate, it is not usable", "secret", p.options.SecretName, "err", err)
			current = nil
		}
	}
	renewed, err := renew(current, p.options.DNSNames, p.options.Clock.Now())
	if err != nil {
		return nil, err
	}
	if renewed != current {
		if err := p.store(ctx, secret, renewed, exists); err != nil {
			return nil, err
		}
	}
	p.use(renewed.cert, renewed.key)
	return renewed.bundle, nil
}

func (p *Provider) store(ctx context.Context, secret *corev1.Secret, renewed *pair, exists bool) error {
	secret.Data = map[string][]byte{
		authorityCertKey:        renewed.bundle,
		authorityKeyKey:         renewed.authorityKey,
		corev1.TLSCertKey:       renewed.cert,
		corev1.TLSPrivateKeyKey: renewed.key,
	}
	var err error
	if exists {
		_, err = p.options.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
	} else {
		_, err = p.options.Secrets.Create(ctx, secret, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("storing the serving certificate in the Secret %s: %w", p.options.SecretName, withRole(err, systemRole))
	}
	return nil
}

func (p *Provider) use(cert, key []byte) {
	p.mu.Lock()
	changed := !bytes.Equal(p.cert, cert) || !bytes.Equal(p.key, key)
	p.cert, p.key = cert, key
	listeners := p.listeners
	p.mu.Unlock()
	if !changed {
		return
	}
	for _, listener := range listeners {
		listener.Enqueue()
	}
}

// parsePair reads a Secret and checks that its parts belong together.
func parsePair(secret *corev1.Secret) (*pair, error) {
	current := &pair{
		bundle:       secret.Data[authorityCertKey],
		authorityKey: secret.Data[authorityKeyKey],
		cert:         secret.Data[corev1.TLSCertKey],
		key:          secret.Data[corev1.TLSPrivateKeyKey],
	}
	if len(current.cert) == 0 {
		return nil, errors.New("it holds no certificate")
	}
	if err := current.parse(); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, authority := range current.authorities {
		roots.AddCert(authority)
	}
	// renew checks the validity period.
	if _, err := current.leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: current.leaf.NotBefore}); err != nil {
		return nil, fmt.Errorf("the certificate is not signed by the CA in the Secret: %w", err)
	}
	return current, nil
}
