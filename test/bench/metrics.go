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

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// metricsPort is where resolvers serve their metrics as deployed.
	metricsPort = "8081"
	// metricsRole is the ClusterRole that allows to read them.
	metricsRole   = "elasti-metrics-reader"
	metricsReader = "metrics-reader"
)

// metricsToken creates a service account that may read the metrics of resolvers, and
// returns a token of it. remove takes the permission away.
func (s *stage) metricsToken(ctx context.Context) (token string, remove func(), err error) {
	accounts := s.Host.CoreV1().ServiceAccounts(s.namespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: metricsReader}}, metav1.CreateOptions{}); err != nil {
		return "", nil, fmt.Errorf("creating ServiceAccount %s: %w", metricsReader, err)
	}
	request, err := accounts.CreateToken(ctx, metricsReader, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("creating a token of ServiceAccount %s: %w", metricsReader, err)
	}
	bindings := s.Host.RbacV1().ClusterRoleBindings()
	binding, err := bindings.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-metrics-reader-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: metricsRole},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: metricsReader}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("binding ServiceAccount %s to ClusterRole %s: %w", metricsReader, metricsRole, err)
	}
	return request.Status.Token, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := bindings.Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			fmt.Fprintln(os.Stderr, "bench: deleting ClusterRoleBinding", binding.Name+":", err)
		}
	}, nil
}

// readMetrics returns the metrics of a resolver. It tries again while the API server does
// not know of a new permission.
func readMetrics(ctx context.Context, resolver, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(resolver, metricsPort)+"/metrics", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	// The certificate of a resolver is self-signed.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var text string
	var last error
	err = wait.PollUntilContextTimeout(ctx, apiPollInterval, apiTimeout, true, func(context.Context) (bool, error) {
		response, err := cluster.Do(client, request)
		switch {
		case err != nil:
			last = err
		case response.Status != http.StatusOK:
			last = fmt.Errorf("status %d: %.200s", response.Status, response.Body)
		default:
			text = response.Body
			return true, nil
		}
		return false, nil
	})
	if err != nil {
		return "", fmt.Errorf("reading the metrics of resolver %s: %w: %w", resolver, err, last)
	}
	return text, nil
}

// heldFor returns how many requests and connections of a Service a resolver holds,
// according to its metrics.
func heldFor(metrics, namespace, service string) (int, error) {
	const name = "elasti_resolver_queued_count"
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(metrics))
	if err != nil {
		return 0, fmt.Errorf("parsing the metrics of a resolver: %w", err)
	}
	for _, sample := range families[name].GetMetric() {
		labels := make(map[string]string)
		for _, label := range sample.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["namespace"] == namespace && labels["source"] == service {
			return int(sample.GetGauge().GetValue()), nil
		}
	}
	return 0, fmt.Errorf("the metrics of a resolver have no %s of Service %s/%s", name, namespace, service)
}
