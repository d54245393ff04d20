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
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// metricsPort is where resolvers serve their metrics as deployed.
const metricsPort = "8081"

func TestMetricsOfAResolverAreForThoseWhoMayReadThem(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	resolvers, err := s.ResolverAddresses(s.ctx)
	s.check(err)
	url := "https://" + net.JoinHostPort(resolvers[0], metricsPort) + "/metrics"

	if status, body := s.scrape(url, ""); status != http.StatusUnauthorized {
		t.Errorf("without a token the status is %d: %.100s", status, body)
	}
	if status, body := s.scrape(url, "forged"); status != http.StatusUnauthorized {
		t.Errorf("with a token of elsewhere the status is %d: %.100s", status, body)
	}
	if status, body := s.scrape(url, s.token("stranger")); status != http.StatusForbidden || !strings.Contains(body, "elasti-metrics-reader") {
		t.Errorf("without the permission the status is %d: %.100s", status, body)
	}
	reader := s.token("reader")
	binding, err := s.Host.RbacV1().ClusterRoleBindings().Create(s.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-metrics-reader-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "elasti-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: "reader"}},
	}, metav1.CreateOptions{})
	s.check(err)
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanUpTimeout)
		defer cancel()
		if err := s.Host.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// The authorizer of the API server receives the binding later.
	var status int
	var body string
	err = wait.PollUntilContextTimeout(s.ctx, pollInterval, propagationTimeout, true, func(context.Context) (bool, error) {
		status, body = s.scrape(url, reader)
		return status == http.StatusOK, nil
	})
	if err != nil {
		t.Fatalf("with the permission the status is %d: %.100s", status, body)
	}
	for _, metric := range []string{"elasti_resolver_listeners ", "elasti_resolver_connections ", "elasti_resolver_held_bytes "} {
		if !strings.Contains(body, "\n"+metric) {
			t.Errorf("there is no %s among the metrics", metric)
		}
	}
}

// token creates a service account and returns a token of it.
func (s *scene) token(name string) string {
	s.Helper()
	accounts := s.Host.CoreV1().ServiceAccounts(s.namespace)
	_, err := accounts.Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.check(err)
	request, err := accounts.CreateToken(s.ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	s.check(err)
	return request.Status.Token
}

// scrape gets metrics with a token.
func (s *scene) scrape(url, token string) (status int, body string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
	s.check(err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// The certificate of a resolver is self-signed.
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	response, err := (&http.Client{Transport: transport}).Do(request)
	s.check(err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	s.check(err)
	return response.StatusCode, string(content)
}
