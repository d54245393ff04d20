//go:build more

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

package e2e

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/certificates"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// etcdSecret is the Secret of artifacts/deploy/components/external-etcd.
	etcdSecret = "elasti-apiserver-etcd"
	// storeRecord is the ConfigMap that records which store is in use.
	storeRecord = "elasti-apiserver-store"
	// replicasTimeout bounds a test that deploys the product twice.
	replicasTimeout = 8 * time.Minute
	// wakesDuringRestart is how many targets are woken while everything restarts.
	wakesDuringRestart = 10
)

// TestRollingRestartOfEverythingFailsNoRequest replaces the pods of both components at the
// same time, with two API servers, as deployed and on an etcd: awake targets stay awake,
// sleeping ones wake, and no mode changes.
func TestRollingRestartOfEverythingFailsNoRequest(t *testing.T) {
	t.Run("host cluster", func(t *testing.T) {
		restartEverything(newSceneWithin(t, replicasTimeout))
	})
	t.Run("etcd", func(t *testing.T) {
		s := newSceneWithin(t, replicasTimeout)
		s.deployOnEtcd()
		restartEverything(s)
	})
}

func restartEverything(s *scene) {
	s.Helper()
	s.checkTwoAPIServers()
	observer := s.observe()

	always := s.asleep(cluster.ApplicationOptions{Name: "always", Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Proxy = &v1alpha1.ProxySpec{Policy: v1alpha1.ProxyAlways}
	}})
	s.get(always, "/")
	awake := s.awake(cluster.ApplicationOptions{Name: "awake"})
	s.awaitDirect(awake)
	asleep := s.asleep(cluster.ApplicationOptions{Name: "asleep"})
	// The requests of this application are held from before the restart until after it
	// began.
	slow := s.asleep(cluster.ApplicationOptions{Name: "slow", Arguments: []string{"-start-delay=20s"}})
	var waking []*cluster.Application
	for i := range wakesDuringRestart {
		waking = append(waking, s.asleep(cluster.ApplicationOptions{Name: fmt.Sprintf("waking-%02d", i)}))
	}
	began := time.Now()

	var traffics []*cluster.Traffic
	var stops []func()
	send := func(traffic *cluster.Traffic) {
		traffic.Timeout = time.Minute
		traffics = append(traffics, traffic)
		stops = append(stops, s.background(traffic.Run))
	}
	for _, keepAlive := range []bool{false, true} {
		send(&cluster.Traffic{Application: always, Path: "/", PerSecond: 50, Limit: 50_000, KeepAlive: keepAlive})
		send(&cluster.Traffic{Application: awake, Path: "/", PerSecond: 50, Limit: 50_000, KeepAlive: keepAlive})
	}
	send(&cluster.Traffic{Application: slow, Path: "/", PerSecond: 10, Limit: 10})
	wakes := make(chan error, 1)
	s.background(func(ctx context.Context) { wakes <- wakeOneByOne(ctx, waking) })
	s.restart(apiserverDeployment, resolverDeployment)
	s.check(<-wakes)
	s.check(slow.AwaitMode(s.ctx, v1alpha1.ModeServe))
	for _, stop := range stops {
		stop()
	}

	for _, traffic := range traffics {
		s.checkTraffic(traffic)
	}
	for _, moment := range observer.Since(began) {
		switch moment.Change {
		case cluster.ModeChanged, cluster.ResolversAdded, cluster.ResolversRemoved:
			if slices.Contains([]string{always.Name, awake.Name, asleep.Name}, moment.Name) {
				s.Errorf("%s, though nothing happened to it", moment)
			}
		}
	}
	s.get(asleep, "/after")
}

// wakeOneByOne sends a request to each of the applications, which sleep, one
// after the other.
func wakeOneByOne(ctx context.Context, applications []*cluster.Application) error {
	for _, app := range applications {
		response, err := cluster.Get(ctx, app.URL("/"))
		if err != nil {
			return fmt.Errorf("waking %s at %s: %w", app.Name, time.Now().Format(time.StampMilli), err)
		}
		if err := response.FromApplication(app.Name); err != nil {
			return fmt.Errorf("waking %s: %w", app.Name, err)
		}
	}
	return nil
}

// checkTwoAPIServers expects that two API servers run.
func (s *scene) checkTwoAPIServers() {
	s.Helper()
	serving, err := s.SystemPods(s.ctx, cluster.APIServerSelector)
	s.check(err)
	if len(serving) != 2 {
		s.Fatalf("there are %d API servers, want 2", len(serving))
	}
}

// deployOnEtcd deploys the product with the component external-etcd, on an etcd beside the
// cluster, until the test ends.
func (s *scene) deployOnEtcd() {
	s.Helper()
	servers, authority, client := s.startEtcd()
	secrets := s.Host.CoreV1().Secrets(cluster.SystemNamespace)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		if err := secrets.Delete(ctx, etcdSecret, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	})
	_, err := secrets.Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: etcdSecret},
		Data:       map[string][]byte{"servers": []byte(servers), "ca.crt": authority, "tls.crt": client.CertificatePEM, "tls.key": client.KeyPEM},
	}, metav1.CreateOptions{})
	s.check(err)

	recorded, err := s.Host.CoreV1().ConfigMaps(cluster.SystemNamespace).Get(s.ctx, storeRecord, metav1.GetOptions{})
	s.check(err)
	overlay := s.writeOverlayOnEtcd(recorded.Data["identity"])
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), testTimeout)
		defer cancel()
		if err := s.deployAsBefore(ctx, recorded.Data["identity"]); err != nil {
			s.Errorf("deploying the product as it was: %v", err)
		}
	})
	_, err = s.runAdminKubectl(s.ctx, "apply", "--kustomize", overlay)
	s.check(err)
	s.check(s.AwaitRollout(s.ctx, apiserverDeployment))
	s.check(s.AwaitRollout(s.ctx, resolverDeployment))
	s.awaitAPI()
}

// writeOverlayOnEtcd writes a kustomization of the images that run now, in a
// directory of the repository: its paths have to be relative. The servers may give up the
// store that is recorded.
func (s *scene) writeOverlayOnEtcd(recorded string) (directory string) {
	s.Helper()
	directory, err := os.MkdirTemp(filepath.Join(s.Repository, "_output"), "deploy-etcd-")
	s.check(err)
	s.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			s.Error(err)
		}
	})
	text := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - ../../artifacts/deploy
components:
  - ../../artifacts/deploy/components/external-etcd
patches:
  - target:
      kind: Deployment
    patch: |
      - op: replace
        path: /spec/template/spec/containers/0/imagePullPolicy
        value: IfNotPresent
  - target:
      kind: Deployment
      name: elasti-apiserver
    patch: |
      - op: add
        path: /spec/template/spec/containers/0/args/-
        value: --accept-new-store=` + recorded + `
images:
`
	for _, name := range []string{apiserverDeployment, resolverDeployment} {
		deployment, err := s.Host.AppsV1().Deployments(cluster.SystemNamespace).Get(s.ctx, name, metav1.GetOptions{})
		s.check(err)
		image := deployment.Spec.Template.Spec.Containers[0].Image
		repository, tag, tagged := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
		if !tagged {
			s.Fatalf("the image %s of %s has no tag", image, name)
		}
		text += fmt.Sprintf("  - name: %s\n    newName: %s%s\n    newTag: %q\n", name, image[:strings.LastIndex(image, "/")+1], repository, tag)
	}
	s.check(os.WriteFile(filepath.Join(directory, "kustomization.yaml"), []byte(text), 0o600))
	return directory
}

// deployAsBefore deletes the ElastiServices of the scene while the current servers run, and
// deploys what hack/deploy.sh had deployed, on the store that was recorded before.
func (s *scene) deployAsBefore(ctx context.Context, recorded string) error {
	elastiServices := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace)
	if err := elastiServices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := s.awaitNoElastiServices(ctx); err != nil {
		return err
	}
	// A server on the etcd would record its store again.
	if err := s.setSystemReplicas(ctx, apiserverDeployment, 0); err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"data":{"identity":%q}}`, recorded)
	if _, err := s.runAdminKubectl(ctx, "patch", "configmap", storeRecord, "--namespace", cluster.SystemNamespace, "--type=merge", "--patch", patch); err != nil {
		return err
	}
	if _, err := s.runAdminKubectl(ctx, "apply", "--kustomize", filepath.Join(s.Repository, "_output", "deploy")); err != nil {
		return err
	}
	for _, name := range []string{apiserverDeployment, resolverDeployment} {
		if err := s.AwaitRollout(ctx, name); err != nil {
			return err
		}
	}
	return s.waitForAPI(ctx)
}

// awaitNoElastiServices waits until the scene has none.
func (s *scene) awaitNoElastiServices(ctx context.Context) error {
	list, err := s.Elasti.ElastiV1alpha1().ElastiServices(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := s.AwaitElastiServiceDeleted(ctx, s.namespace, list.Items[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// startEtcd runs an etcd on the address of the cluster's API server until the
// test ends. Its certificate is also the one of its clients.
func (s *scene) startEtcd() (address string, authority []byte, issued certificates.Issued) {
	s.Helper()
	host, err := url.Parse(s.Config.Host)
	s.check(err)
	listener, err := net.Listen("tcp", net.JoinHostPort(host.Hostname(), "0"))
	s.check(err)
	address = "https://" + listener.Addr().String()
	s.check(listener.Close())
	signer := certificates.NewAuthority("etcd-ca", certificates.ECDSA)
	authority = signer.PEM()
	issued = signer.Issue(x509.Certificate{Subject: pkix.Name{CommonName: "etcd"}, IPAddresses: []net.IP{net.ParseIP(host.Hostname())}})
	directory := s.TempDir()
	authorityFile, certificateFile, keyFile := filepath.Join(directory, "ca.crt"), filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key")
	s.check(os.WriteFile(authorityFile, authority, 0o600))
	s.check(os.WriteFile(certificateFile, issued.CertificatePEM, 0o600))
	s.check(os.WriteFile(keyFile, issued.KeyPEM, 0o600))
	etcd, err := s.StartTool("etcd", directory, nil,
		"--data-dir="+filepath.Join(directory, "data"), "--unsafe-no-fsync",
		"--listen-client-urls="+address, "--advertise-client-urls="+address,
		"--listen-peer-urls=unix://"+filepath.Join(directory, "peer.sock"),
		"--client-cert-auth", "--trusted-ca-file="+authorityFile, "--cert-file="+certificateFile, "--key-file="+keyFile)
	s.check(err)
	s.Cleanup(func() {
		if err := etcd.Stop(); err != nil {
			s.Error(err)
		}
	})
	return address, authority, issued
}
