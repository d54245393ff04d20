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
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// A tenant that writes another tenant's proxy port into a status gets none of the other
// tenant's traffic, and the other tenant keeps the port.
func TestATenantCannotTakeTheProxyPortOfAnother(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	victim := s.asleep(cluster.ApplicationOptions{Name: "victim"})
	attacker := s.asleepIn(s.newNamespace(), cluster.ApplicationOptions{Name: "attacker"})
	stored, err := s.AwaitElastiService(s.ctx, victim.Namespace, victim.Name, "it has a proxy port", func(elastiService *v1alpha1.ElastiService) bool {
		return len(elastiService.Status.ProxyPorts) == 1
	})
	s.check(err)
	port := stored.Status.ProxyPorts[0].ProxyPort
	administrator, err := s.ServiceAccount(s.ctx, attacker.Namespace, "administrator", t.TempDir(), rbacv1.PolicyRule{
		APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"},
	})
	s.check(err)

	patch := fmt.Sprintf(`{"status":{"proxyPorts":[{"name":"http","port":80,"proxyPort":%d}]}}`, port)
	for _, subresource := range []string{"--subresource=status", ""} {
		arguments := []string{"patch", "elastiservice", attacker.Name, "--type=merge", "--patch=" + patch}
		if subresource != "" {
			arguments = append(arguments, subresource)
		}
		_, err := s.RunKubectl(s.ctx, administrator, "", arguments...)
		if subresource != "" && (err == nil || !strings.Contains(err.Error(), "status.proxyPorts")) {
			t.Errorf("kubectl patch %s says %v, want an error that names status.proxyPorts", subresource, err)
		}
	}
	after, err := s.AwaitElastiService(s.ctx, attacker.Namespace, attacker.Name, "it is there", func(*v1alpha1.ElastiService) bool { return true })
	s.check(err)
	for _, owned := range after.Status.ProxyPorts {
		if owned.ProxyPort == port {
			t.Errorf("port %d of the victim is in the status of the attacker", port)
		}
	}
	// Each resolver serves the victim on that port.
	resolvers, err := s.ResolverAddresses(s.ctx)
	s.check(err)
	for _, resolver := range resolvers {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := cluster.GetWith(s.ctx, client, fmt.Sprintf("http://%s:%d/", resolver, port))
		s.check(err)
		s.checkResponse(victim, response, "/")
	}
	s.get(victim, "/")
}

// Resolvers leave the path of a Service that they can no longer serve only when its
// target is awake.
func TestATargetIsWokenBeforeResolversLeaveItsService(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	app := s.asleep(cluster.ApplicationOptions{})
	observer := s.observe()
	changed := time.Now()
	_, err := s.RunKubectl(s.ctx, s.Kubeconfig, "", "--namespace="+app.Namespace, "patch", "service", app.Name, "--type=merge",
		`--patch={"spec":{"type":"ExternalName","externalName":"www.example.com","clusterIP":null,"clusterIPs":null,"selector":null}}`)
	s.check(err)
	scaled, err := observer.Await(s.ctx, changed, cluster.Scaled, app.Name, "1")
	s.check(err)
	removed, err := observer.Await(s.ctx, changed, cluster.ResolversRemoved, app.Name, "")
	s.check(err)
	if removed.At.Before(scaled.At) {
		t.Errorf("the resolver slice was removed %s before the target was woken", scaled.At.Sub(removed.At))
	}
	s.awaitPods(app, 1)
	s.checkReplicas(app, 1)
}
