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

// Package uninstall takes the whole product out of a real cluster, in several
// orders, while applications sleep. It needs the cluster to itself, and leaves
// the product deployed as it was.
//
// It knows no more of the product than an administrator could see. Begin with
// TestDeletedInstallationLeavesTheClusterAsItWas.
package uninstall

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	orderTimeout  = 8 * time.Minute
	deployTimeout = 5 * time.Minute
)

// installation is the product in the cluster under test.
type installation struct {
	*testing.T
	*cluster.Cluster
	ctx context.Context
}

// run runs a command in the repository.
func (i *installation) run(ctx context.Context, name string, arguments ...string) {
	i.Helper()
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = i.Repository
	if output, err := command.CombinedOutput(); err != nil {
		i.Fatalf("%s %v: %v\n%s", name, arguments, err, output)
	}
}

func (i *installation) kubectl(arguments ...string) {
	i.Helper()
	i.run(i.ctx, i.Kubectl, arguments...)
}

func (i *installation) check(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

// deleteProduct deletes the product, as docs/install.md says, and waits for it. What it has
// stored stays.
func (i *installation) deleteProduct() {
	i.Helper()
	i.kubectl("delete", "--kustomize", filepath.Join("artifacts", "deploy", "base"), "--ignore-not-found", "--timeout=4m")
}

// deleteEverything deletes the product and, without consent to that, what it has stored: that
// is rejected, with what to do.
func (i *installation) deleteEverything() {
	i.Helper()
	command := exec.CommandContext(i.ctx, i.Kubectl, "delete", "--kustomize", filepath.Join("artifacts", "deploy"), "--wait=false")
	command.Dir = i.Repository
	output, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "annotate it first") {
		i.Errorf("the storage can be deleted with the product: %v\n%s", err, output)
	}
	i.check(i.AwaitNamespaceDeleted(i.ctx, cluster.SystemNamespace))
}

// deleteStorage deletes what the product has stored, as docs/install.md says.
func (i *installation) deleteStorage() {
	i.Helper()
	storage := filepath.Join("artifacts", "deploy", "storage")
	i.kubectl("annotate", "--filename", filepath.Join(storage, "customresourcedefinitions.yaml"), "storage.elasti.truefoundry.com/allow-deletion=true")
	i.kubectl("delete", "--kustomize", storage, "--timeout=4m")
}

func TestDeletedInstallationLeavesTheClusterAsItWas(t *testing.T) {
	for _, order := range []struct {
		name   string
		remove func(*installation)
	}{
		{"everything at once", (*installation).deleteEverything},
		{"all but the storage", (*installation).deleteProduct},
		{"the namespace first", func(i *installation) {
			// While the API has no server, no namespace can go: the rest has to follow.
			i.kubectl("delete", "namespace", cluster.SystemNamespace, "--wait=false")
			i.deleteProduct()
		}},
		{"the ElastiServices first", func(i *installation) {
			i.kubectl("delete", "elastiservices", "--all", "--all-namespaces", "--timeout=4m")
			i.deleteProduct()
		}},
		{"the storage last", func(i *installation) {
			i.deleteProduct()
			i.deleteStorage()
		}},
	} {
		t.Run(order.name, func(t *testing.T) { removeAndCheck(t, order.remove) })
	}
}

func removeAndCheck(t *testing.T, remove func(*installation)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), orderTimeout)
	defer cancel()
	connected, err := cluster.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{T: t, Cluster: connected, ctx: ctx}
	namespace, err := i.CreateNamespace(ctx, "uninstall")
	i.check(err)
	t.Cleanup(func() { i.cleanUp(namespace) })

	asleep := i.NewApplication(namespace, cluster.ApplicationOptions{Name: "asleep"})
	awake := i.NewApplication(namespace, cluster.ApplicationOptions{Name: "awake", Replicas: 1})
	services := map[string]*corev1.Service{}
	for _, app := range []*cluster.Application{asleep, awake} {
		i.check(app.Create(ctx))
		service, err := i.Host.CoreV1().Services(namespace).Get(ctx, app.Name, metav1.GetOptions{})
		i.check(err)
		services[app.Name] = service
	}
	i.check(asleep.AwaitAsleep(ctx))
	i.check(awake.AwaitMode(ctx, v1alpha1.ModeServe))

	remove(i)

	for _, app := range []*cluster.Application{asleep, awake} {
		replicas, err := app.Replicas(ctx)
		i.check(err)
		if replicas != 1 {
			t.Errorf("%s is left at %d replicas, want 1", app.Name, replicas)
		}
		_, err = i.AwaitEndpointSlices(ctx, namespace, app.Name, "its pod is its only endpoint", func(found []*discoveryv1.EndpointSlice) bool {
			ready := 0
			for _, slice := range found {
				if cluster.IsResolverSlice(slice) {
					return false
				}
				for _, endpoint := range slice.Endpoints {
					if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
						ready++
					}
				}
			}
			return ready == 1
		})
		i.check(err)
		i.check(app.AwaitReachable(ctx))
		response, err := cluster.Get(ctx, app.URL("/"))
		if err == nil {
			err = response.FromApplication(app.Name)
		}
		if err != nil {
			t.Errorf("%s does not respond: %v", app.Name, err)
		}
	}
	_, err = i.AwaitServices(ctx, namespace, "only the Services of the user are there", func(found []*corev1.Service) bool {
		for _, service := range found {
			if before := services[service.Name]; before == nil || !equality.Semantic.DeepEqual(before, service) {
				return false
			}
		}
		return len(found) == len(services)
	})
	i.check(err)
	// Nothing of the product is left to hold it up.
	i.check(i.DeleteNamespace(ctx, namespace))
	i.check(i.AwaitNamespaceDeleted(ctx, namespace))
}

// cleanUp deploys the product again, and deletes the namespace of the
// applications.
func (i *installation) cleanUp(namespace string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.ctx), deployTimeout)
	defer cancel()
	if i.Failed() {
		i.Log(i.Diagnose(ctx, namespace, time.Now().Add(-orderTimeout)))
	}
	i.run(ctx, filepath.Join(i.Repository, "hack", "deploy.sh"))
	// What is stored outlives the installation: its namespace is deleted.
	elastiServices := i.Elasti.ElastiV1alpha1().ElastiServices(namespace)
	if err := elastiServices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		i.Error(err)
	}
	for _, name := range []string{"asleep", "awake"} {
		if err := i.AwaitElastiServiceDeleted(ctx, namespace, name); err != nil {
			i.Error(err)
		}
	}
	if err := i.DeleteNamespace(ctx, namespace); err != nil {
		i.Error(err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("KUBECONFIG") == "" {
		fmt.Fprintln(os.Stderr, "set KUBECONFIG to the cluster that the product is taken out of: `make test-uninstall` does")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
