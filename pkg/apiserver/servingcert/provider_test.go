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

package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
)

const (
	testNamespace = "system"
	testSecret    = "serving-cert"
)

var testNames = []string{"server.system.svc", "localhost"}

// published records the bundles that were published, in order.
type published struct {
	mu      sync.Mutex
	bundles [][]byte
	fail    error
}

func (p *published) Publish(_ context.Context, bundle []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	p.bundles = append(p.bundles, bundle)
	return nil
}

func (p *published) last() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.bundles) == 0 {
		return nil
	}
	return p.bundles[len(p.bundles)-1]
}

func (p *published) times() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.bundles)
}

func (p *published) setFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// counter counts how often a listener was notified of a new certificate.
type counter struct{ times int }

func (l *counter) Enqueue() { l.times++ }

func newProvider(secrets corev1client.SecretInterface, publisher BundlePublisher, clock clock.Clock) *Provider {
	return New(Options{Secrets: secrets, SecretName: testSecret, DNSNames: testNames, Publisher: publisher, Clock: clock})
}

func secretsOf(cluster *fake.Clientset) corev1client.SecretInterface {
	return cluster.CoreV1().Secrets(testNamespace)
}

func runOnce(t *testing.T, provider *Provider) {
	t.Helper()
	if err := provider.RunOnce(t.Context()); err != nil {
		t.Fatalf("making the certificate: %v", err)
	}
}

// hookedSecrets calls before in front of each write.
type hookedSecrets struct {
	corev1client.SecretInterface
	before func() error
}

func (s hookedSecrets) Create(ctx context.Context, secret *corev1.Secret, options metav1.CreateOptions) (*corev1.Secret, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.SecretInterface.Create(ctx, secret, options)
}

func (s hookedSecrets) Update(ctx context.Context, secret *corev1.Secret, options metav1.UpdateOptions) (*corev1.Secret, error) {
	if err := s.before(); err != nil {
		return nil, err
	}
	return s.SecretInterface.Update(ctx, secret, options)
}

func readSecret(t *testing.T, cluster *fake.Clientset) *corev1.Secret {
	t.Helper()
	secret, err := secretsOf(cluster).Get(t.Context(), testSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the Secret: %v", err)
	}
	return secret
}

// verify returns why a client that trusts bundle would not accept what the provider
// serves.
func verify(provider *Provider, bundle []byte, now time.Time) error {
	served, key := provider.CurrentCertKeyContent()
	if _, err := tls.X509KeyPair(served, key); err != nil {
		return err
	}
	leaves, err := cert.ParseCertsPEM(served)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, name := range testNames {
		if _, err := leaves[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			return err
		}
	}
	return nil
}

func TestFirstStartMakesAndPublishesACertificate(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	provider := newProvider(secretsOf(cluster), publisher, now)
	runOnce(t, provider)
	if err := verify(provider, publisher.last(), now.Now()); err != nil {
		t.Errorf("a client that trusts the published bundle does not accept the certificate: %v", err)
	}
	secret := readSecret(t, cluster)
	served, key := provider.CurrentCertKeyContent()
	if secret.Type != corev1.SecretTypeTLS || !bytes.Equal(secret.Data[corev1.TLSCertKey], served) || !bytes.Equal(secret.Data[corev1.TLSPrivateKeyKey], key) {
		t.Errorf("the Secret of type %s does not hold what is served", secret.Type)
	}
}

func TestNextStartUsesTheSameCertificate(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	first := newProvider(secretsOf(cluster), publisher, now)
	runOnce(t, first)
	cluster.ClearActions()
	second := newProvider(secretsOf(cluster), publisher, now)
	runOnce(t, second)
	expectSame(t, first, second)
	for _, action := range cluster.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("the second start sends a %s", action.GetVerb())
		}
	}
}

func TestReplicasThatStartAtOnceServeOneCertificate(t *testing.T) {
	const replicas = 5
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	// No Secret is created before every replica has seen that there is none.
	var arrived sync.WaitGroup
	arrived.Add(replicas)
	providers := make([]*Provider, replicas)
	var group sync.WaitGroup
	for i := range providers {
		arrive := sync.OnceFunc(arrived.Done)
		secrets := hookedSecrets{secretsOf(cluster), func() error {
			arrive()
			arrived.Wait()
			return nil
		}}
		providers[i] = newProvider(secrets, publisher, now)
		group.Go(func() {
			// A replica that fails before it writes must not block the others.
			defer arrive()
			if err := providers[i].RunOnce(t.Context()); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		})
	}
	group.Wait()
	for _, provider := range providers {
		expectSame(t, providers[0], provider)
		if err := verify(provider, publisher.last(), now.Now()); err != nil {
			t.Errorf("a client that trusts the published bundle does not accept the certificate: %v", err)
		}
	}
}

func TestReplicaThatLosesTheRaceForARenewalTakesOverWhatWasWritten(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	first := newProvider(secretsOf(cluster), publisher, now)
	raced := false
	second := newProvider(hookedSecrets{secretsOf(cluster), func() error {
		if raced {
			return nil
		}
		raced = true
		runOnce(t, first)
		return apierrors.NewConflict(corev1.Resource("secrets"), testSecret, errors.New("changed"))
	}}, publisher, now)
	runOnce(t, first)
	runOnce(t, second)
	now.Step(certValidity * 9 / 10)
	runOnce(t, second)
	if !raced {
		t.Fatal("nothing was renewed")
	}
	expectSame(t, first, second)
}

// Over many years of checks, what is served is accepted by clients that know the
// bundle that was published a day before, or publishes it now.
func TestRenewalsAreNeverNoticed(t *testing.T) {
	const step = 10 * 24 * time.Hour
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	provider := newProvider(secretsOf(cluster), publisher, now)
	listener := &counter{}
	provider.AddListener(listener)
	runOnce(t, provider)
	authorities := map[string]bool{}
	for end := now.Now().Add(2 * authorityValidity); now.Now().Before(end); now.Step(step) {
		before := publisher.last()
		if err := provider.check(t.Context()); err != nil {
			t.Fatalf("%s: %v", now.Now(), err)
		}
		for _, bundle := range [][]byte{before, publisher.last()} {
			if err := verify(provider, bundle, now.Now()); err != nil {
				t.Fatalf("%s: %v", now.Now(), err)
			}
		}
		authorities[string(publisher.last())] = true
	}
	if len(authorities) < 3 {
		t.Errorf("%d bundles were published, want one with a new authority and one without the old one at least", len(authorities))
	}
	if fewest := int(2 * authorityValidity / certValidity); listener.times < fewest {
		t.Errorf("the listener was notified %d times, want at least %d", listener.times, fewest)
	}
}

// While a new authority cannot be published, nothing that it signed is served.
func TestAuthorityThatCannotBePublishedIsNotUsed(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	provider, other := newProvider(secretsOf(cluster), publisher, now), newProvider(secretsOf(cluster), publisher, now)
	runOnce(t, provider)
	// The authority is due when a third of its life is left.
	for end := now.Now().Add(authorityValidity*2/3 - certValidity/10); now.Now().Before(end); now.Step(certValidity / 10) {
		runOnce(t, provider)
	}
	known := publisher.last()
	publisher.setFailure(errors.New("not now"))
	now.Step(certValidity / 10)
	if err := provider.check(t.Context()); err == nil || bytes.Equal(readSecret(t, cluster).Data[authorityCertKey], known) {
		t.Fatalf("no authority was added (error: %v)", err)
	}
	for range 12 {
		now.Step(time.Hour)
		// The replica that added the authority and another one behave alike.
		for _, replica := range []*Provider{other, provider} {
			if err := replica.check(t.Context()); err == nil {
				t.Fatal("publishing did not fail")
			}
			if err := verify(replica, known, now.Now()); err != nil {
				t.Fatalf("a client that has only the published bundle does not accept the certificate: %v", err)
			}
		}
	}
}

// After years off, the authority that clients know is of no use any more.
func TestExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	runOnce(t, newProvider(secretsOf(cluster), publisher, now))
	now.Step(2 * authorityValidity)
	provider := newProvider(secretsOf(cluster), publisher, now)
	runOnce(t, provider)
	if err := verify(provider, publisher.last(), now.Now()); err != nil {
		t.Errorf("a client that trusts the published bundle does not accept the certificate: %v", err)
	}
	if authorities, err := cert.ParseCertsPEM(publisher.last()); err != nil || len(authorities) != 1 {
		t.Errorf("the bundle has %d authorities (error: %v), want the new one only", len(authorities), err)
	}
}

func TestCertificateFollowsItsNames(t *testing.T) {
	cluster, publisher, now := fake.NewClientset(), &published{}, clocktesting.NewFakeClock(time.Now())
	runOnce(t, newProvider(secretsOf(cluster), publisher, now))
	before := publisher.last()
	names := append(slices.Clone(testNames), "other.system.svc")
	provider := New(Options{Secrets: secretsOf(cluster), SecretName: testSecret, DNSNames: names, Publisher: publisher, Clock: now})
	runOnce(t, provider)
	served, _ := provider.CurrentCertKeyContent()
	leaves, err := cert.ParseCertsPEM(served)
	if err != nil || !slices.Equal(leaves[0].DNSNames, names) {
		t.Errorf("the certificate has not the names %v (error: %v)", names, err)
	}
	if err := verify(provider, before, now.Now()); err != nil {
		t.Errorf("a client that has the previous bundle does not accept the certificate: %v", err)
	}
}

func TestDamagedSecretIsReplaced(t *testing.T) {
	otherCluster := fake.NewClientset()
	runOnce(t, newProvider(secretsOf(otherCluster), &published{}, clock.RealClock{}))
	other := readSecret(t, otherCluster).Data
	for _, test := range []struct {
		name   string
		damage func(data map[string][]byte)
	}{
		{"empty", func(data map[string][]byte) { clear(data) }},
		{"no serving key", func(data map[string][]byte) { delete(data, corev1.TLSPrivateKeyKey) }},
		{"no authority key", func(data map[string][]byte) { delete(data, authorityKeyKey) }},
		{"no authority", func(data map[string][]byte) { delete(data, authorityCertKey) }},
		{"noise for a certificate", func(data map[string][]byte) { data[corev1.TLSCertKey] = []byte("noise") }},
		{"key of another certificate", func(data map[string][]byte) { data[corev1.TLSPrivateKeyKey] = other[corev1.TLSPrivateKeyKey] }},
		{"certificate of another authority", func(data map[string][]byte) {
			data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey] = other[corev1.TLSCertKey], other[corev1.TLSPrivateKeyKey]
		}},
		{"key of another authority", func(data map[string][]byte) { data[authorityKeyKey] = other[authorityKeyKey] }},
	} {
		t.Run(test.name, func(t *testing.T) {
			cluster, publisher := fake.NewClientset(), &published{}
			runOnce(t, newProvider(secretsOf(cluster), publisher, clock.RealClock{}))
			secret := readSecret(t, cluster)
			test.damage(secret.Data)
			if _, err := secretsOf(cluster).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			now := clocktesting.NewFakeClock(time.Now())
			provider := newProvider(secretsOf(cluster), publisher, now)
			runOnce(t, provider)
			// The next renewal works with what there is, too.
			for _, wait := range []time.Duration{0, certValidity * 9 / 10} {
				now.Step(wait)
				runOnce(t, provider)
				if err := verify(provider, publisher.last(), now.Now()); err != nil {
					t.Errorf("after %s, a client that trusts the published bundle does not accept the certificate: %v", wait, err)
				}
			}
		})
	}
}

func TestSecretThatCannotBeReadIsLeftAlone(t *testing.T) {
	cluster := fake.NewClientset()
	informerstest.React(&cluster.Fake, "get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("secrets"), testSecret, errors.New("no"))
	})
	err := newProvider(secretsOf(cluster), &published{}, clock.RealClock{}).RunOnce(t.Context())
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), systemRole) {
		t.Errorf("making the certificate ends with %v, want forbidden, and the %s", err, systemRole)
	}
	for _, action := range cluster.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("there was a %s", action.GetVerb())
		}
	}
}

func TestStartDoesNotWaitForPublishing(t *testing.T) {
	publisher := &published{fail: errors.New("there is no APIService yet")}
	provider := newProvider(secretsOf(fake.NewClientset()), publisher, clock.RealClock{})
	runOnce(t, provider)
	if served, _ := provider.CurrentCertKeyContent(); len(served) == 0 {
		t.Error("there is no certificate")
	}
}

func TestRunPublishesAgainAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		publisher := &published{fail: errors.New("not now")}
		provider := newProvider(secretsOf(fake.NewClientset()), publisher, clock.RealClock{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			provider.Run(ctx, 1)
		}()
		synctest.Wait()
		publisher.setFailure(nil)
		// Intervals are stretched by a tenth at most.
		<-time.After(retryInterval * 11 / 10)
		synctest.Wait()
		if count := publisher.times(); count != 1 {
			t.Errorf("published %d times after a failure, want once after the retry interval", count)
		}
		<-time.After(checkInterval * 11 / 10)
		synctest.Wait()
		if count := publisher.times(); count != 2 {
			t.Errorf("published %d times, want once more after the check interval", count)
		}
		cancel()
		<-done
	})
}

func expectSame(t *testing.T, first, second *Provider) {
	t.Helper()
	firstCert, firstKey := first.CurrentCertKeyContent()
	secondCert, secondKey := second.CurrentCertKeyContent()
	if !bytes.Equal(firstCert, secondCert) || !bytes.Equal(firstKey, secondKey) {
		t.Error("the certificates differ")
	}
}
