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

package integration

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/certificates"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// sleepTimeout is longer than several evaluations of a target and a scale-down.
const sleepTimeout = 2 * time.Minute

func waitForDesired(t *testing.T, namespace string, replicas int32) {
	t.Helper()
	eventuallyWithin(t, sleepTimeout, fmt.Sprintf("the target has %d replicas", replicas), func(context.Context) string {
		if got := desiredReplicas(t, namespace); got != replicas {
			return fmt.Sprintf("it has %d", got)
		}
		return ""
	})
}

// quietMetrics is a Prometheus whose metrics are 0, without missed scrapes.
func quietMetrics(t *testing.T) *httptest.Server {
	t.Helper()
	return metricsOf(t, func() string { return "0" })
}

// metricsOf is a Prometheus whose metrics have the value that a function returns, without
// missed scrapes. While the value is empty its queries fail.
func metricsOf(t *testing.T, valueOf func() string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value := valueOf()
		if value == "" {
			http.Error(w, "out of order", http.StatusServiceUnavailable)
			return
		}
		if strings.Contains(r.FormValue("query"), "up{") {
			value = "1"
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"scalar","result":[1,%q]}}`, value)
	}))
	t.Cleanup(server.Close)
	return server
}

func newSleepyElastiService(metadata string) *v1alpha1.ElastiService {
	object := newElastiService("app")
	object.Spec.CooldownPeriod = ptr.To[int32](0)
	object.Spec.Triggers = []v1alpha1.ScaleTrigger{{Type: "prometheus", Metadata: &runtime.RawExtension{Raw: []byte(metadata)}}}
	return object
}

// The decisions of a dry run are reported, and are carried out as soon as it ends. A
// user may scale the sleeping target up again, and a conflict with another controller
// that always does is reported.
func TestDryRunThenScalingConflict(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	object := newSleepyElastiService(fmt.Sprintf(`{"query":"requests","threshold":1,"serverAddress":%q}`, quietMetrics(t).URL))
	object.Annotations = map[string]string{v1alpha1.AnnotationDryRun: "true"}
	createElastiService(t, namespace, object)
	setReady(t, namespace, runPod(t, namespace, "app"), true)

	waitForReason(t, namespace, v1alpha1.ConditionDryRun, metav1.ConditionTrue, v1alpha1.ReasonWouldSleep)
	waitForEvent(t, namespace, v1alpha1.ReasonWouldSleep)
	if status := readElastiService(t, namespace).Status; status.SleepRequestedTime != nil || desiredReplicas(t, namespace) != 1 {
		t.Fatalf("a dry run was carried out: %d replicas, %+v", desiredReplicas(t, namespace), status)
	}

	patch := []byte(`{"metadata":{"annotations":{"elasti.truefoundry.com/dry-run":null}}}`)
	if _, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatalf("ending the dry run: %v", err)
	}
	waitForDesired(t, namespace, 0)
	waitForReplicas(t, namespace, 0)
	if found := meta.FindStatusCondition(readElastiService(t, namespace).Status.Conditions, v1alpha1.ConditionDryRun); found != nil {
		t.Errorf("after the dry run there is %+v", found)
	}

	scaleTarget(t, namespace, 1)
	waitForReplicas(t, namespace, 1)
	waitForEvent(t, namespace, v1alpha1.ReasonScaledUpByOther)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	waitForDesired(t, namespace, 0)
	waitForReplicas(t, namespace, 0)
	scaleTarget(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	message := waitForReason(t, namespace, v1alpha1.ConditionScalingConflict, metav1.ConditionTrue, v1alpha1.ReasonScaledUpByOther)
	if !strings.Contains(message, "somebody else") {
		t.Errorf("the condition does not say which client scales the target: %s", message)
	}
	// The scale-downs continue after a longer pause.
	waitForDesired(t, namespace, 0)
}

// Prometheus with TLS requires a client certificate. It is in a Secret that the server
// may read once a role allows it.
func TestPrometheusWithClientCertificates(t *testing.T) {
	restartServerWith(t, "--polling-interval=1s", "--trigger-allowed-servers=127.0.0.0/8")
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	ca := newMonitoringAuthority()
	address := runSecurePrometheus(t, ca)
	createElastiService(t, namespace, newSleepyElastiService(fmt.Sprintf(`{"query":"vector(0)","threshold":1,"serverAddress":"https://%s","uptimeFilter":"job=\"none\"","tlsConfig":{
		"ca":{"configMap":{"name":"monitoring-ca","key":"ca.crt"}},
		"cert":{"secret":{"name":"monitoring-client","key":"tls.crt"}},"keySecret":{"name":"monitoring-client","key":"tls.key"}}}`, address)))

	waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse, v1alpha1.ReasonCredentialsUnavailable)
	certificate, key := issueForLoopback(ca, x509.ExtKeyUsageClientAuth)
	other, otherKey := issueForLoopback(newMonitoringAuthority(), x509.ExtKeyUsageClientAuth)
	createCredentials(t, namespace, ca, other, otherKey)
	if message := waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse, v1alpha1.ReasonCredentialsUnavailable); !strings.Contains(message, "may not read") {
		t.Errorf("without permission the condition says: %s", message)
	}
	allowCredentials(t, namespace)
	// A certificate of another authority is rejected, the right one is accepted.
	waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse, v1alpha1.ReasonServerFailed)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "monitoring-client"}, Data: map[string][]byte{"tls.crt": certificate, "tls.key": key}}
	if _, err := shared.Kubernetes.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("rotating the certificate: %v", err)
	}
	// Prometheus now responds that it does not scrape such a job.
	waitForReason(t, namespace, v1alpha1.ConditionTriggersHealthy, metav1.ConditionFalse, v1alpha1.ReasonNotScraped)
	if output := shared.Server.Process().Output(); strings.Contains(output, strings.Split(string(key), "\n")[1]) {
		t.Error("the log holds the private key")
	}
	if replicas := desiredReplicas(t, namespace); replicas != 1 {
		t.Errorf("without data the target was scaled to %d", replicas)
	}
}

func createCredentials(t *testing.T, namespace string, ca *certificates.Authority, certificate, key []byte) {
	t.Helper()
	if _, err := shared.Kubernetes.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "monitoring-ca"}, Data: map[string]string{"ca.crt": string(ca.PEM())},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the ConfigMap with the authority: %v", err)
	}
	if _, err := shared.Kubernetes.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "monitoring-client"}, Data: map[string][]byte{"tls.crt": certificate, "tls.key": key},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Secret with the certificate: %v", err)
	}
}

// allowCredentials is the Role that docs/sleep.md shows.
func allowCredentials(t *testing.T, namespace string) {
	t.Helper()
	about := metav1.ObjectMeta{Name: "elasti-trigger-credentials"}
	if _, err := shared.Kubernetes.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: about, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"monitoring-client"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"monitoring-ca"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the Role: %v", err)
	}
	if _, err := shared.Kubernetes.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: about,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: about.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: environment.SystemNamespace, Name: environment.ServerName}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding the Role: %v", err)
	}
}

func newMonitoringAuthority() *certificates.Authority {
	return certificates.NewAuthority("monitoring", certificates.ECDSA)
}

// issueForLoopback returns a certificate for 127.0.0.1, and its key.
func issueForLoopback(authority *certificates.Authority, usage x509.ExtKeyUsage) (certificate, key []byte) {
	issued := authority.Issue(x509.Certificate{
		Subject: pkix.Name{CommonName: "monitoring"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	})
	return issued.CertificatePEM, issued.KeyPEM
}

// runSecurePrometheus runs a Prometheus server that requires client certificates of an
// authority, and returns its address.
func runSecurePrometheus(t *testing.T, ca *certificates.Authority) (address string) {
	t.Helper()
	binary, err := exec.LookPath("../../_output/tools/bin/prometheus")
	if err != nil {
		t.Fatalf("there is no Prometheus server: run hack/tools/debian.sh prometheus: %v", err)
	}
	port, err := shared.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	directory := t.TempDir()
	certificate, key := issueForLoopback(ca, x509.ExtKeyUsageServerAuth)
	for name, content := range map[string][]byte{
		"tls.crt": certificate, "tls.key": key, "ca.crt": ca.PEM(),
		"prometheus.yml": []byte("global: {scrape_interval: 1s}\n"),
		"web.yml":        []byte("tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt}\n"),
	} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(directory, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command(binary, "--config.file="+filepath.Join(directory, "prometheus.yml"), "--web.config.file="+filepath.Join(directory, "web.yml"),
		"--storage.tsdb.path="+filepath.Join(directory, "data"), "--web.listen-address="+address)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("ending Prometheus: %v", err)
		}
		if err := process.Wait(); err != nil || t.Failed() {
			output, _ := os.ReadFile(log.Name())
			t.Logf("Prometheus ended with %v\n%s", err, output)
		}
		_ = log.Close()
	})
	return address
}
