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

// Package install installs the product on a real cluster, as administrators do: the chart
// with Helm 3 and Helm 4, and the chart and the kustomization with kubectl. It upgrades,
// rolls back and uninstalls while applications sleep and requests arrive. It needs the
// local cluster to itself, and leaves it without the product. It is a module of its own,
// so that the product does not depend on Helm.
//
// It knows no more of the product than an administrator could see. Begin with
// TestHelmInstallsUpgradesAndUninstalls.
package install

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"

	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

const (
	// testTimeout bounds one installation with all that is done with it.
	testTimeout = 12 * time.Minute
	// cleanUpTimeout bounds what is done after a test has ended.
	cleanUpTimeout = 5 * time.Minute
	// awaitTimeout bounds one step; each takes a small part of it.
	awaitTimeout = 3 * time.Minute
	// helmTimeout is the default of Helm's commands.
	helmTimeout = 5 * time.Minute

	pollInterval = 200 * time.Millisecond

	apiServer = "elasti-apiserver"
	resolver  = "elasti-resolver"
	// uninstallFinalizer is on what the server needs to put the cluster back as it was.
	uninstallFinalizer = "elasti.truefoundry.com/uninstall"
)

var (
	apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	storedKinds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// installation is the product in the cluster under test, and the namespace of the
// applications. A step that fails ends the test.
type installation struct {
	*testing.T
	*cluster.Cluster

	ctx      context.Context
	mapper   meta.RESTMapper
	metadata metadata.Interface

	namespace    string
	applications applications
	// before has what the cluster had before the product was installed, with the
	// applications.
	before map[string]bool
}

// newInstallation connects to the cluster, takes what an earlier test or `make deploy`
// has left out of it, and creates applications without ElastiServices.
func newInstallation(t *testing.T) *installation {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	connected, err := cluster.ConnectToHost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := &installation{T: t, Cluster: connected, ctx: ctx}
	i.metadata, err = metadata.NewForConfig(i.Config)
	i.check(err)
	i.check(i.remove(ctx))
	groups, err := restmapper.GetAPIGroupResources(i.Host.Discovery())
	i.check(err)
	i.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	started := time.Now()
	i.namespace, err = i.CreateNamespace(ctx, "install")
	i.check(err)
	t.Cleanup(func() { i.cleanUp(started) })
	i.createApplications()
	i.before, err = i.inventory(ctx)
	i.check(err)
	return i
}

// step runs one step as a subtest. When it fails, the remaining steps are not run.
func (i *installation) step(name string, run func(*installation)) {
	i.Helper()
	if !i.Run(name, func(t *testing.T) {
		step := *i
		step.T = t
		run(&step)
	}) {
		i.FailNow()
	}
}

func (i *installation) check(err error) {
	i.Helper()
	if err != nil {
		i.Fatal(err)
	}
}

// await waits until a condition returns no error.
func (i *installation) await(what string, condition func(context.Context) error) {
	i.Helper()
	var last error
	err := wait.PollUntilContextTimeout(i.ctx, pollInterval, awaitTimeout, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	if err != nil {
		i.Fatalf("waiting until %s: %v: %v", what, err, last)
	}
}

// awaitServing waits until the product serves, and has written what it writes into
// objects of its installation.
func (i *installation) awaitServing() {
	i.Helper()
	i.await("the API is available", func(ctx context.Context) error {
		found, err := i.Dynamic.Resource(apiServices).Get(ctx, "v1alpha1.elasti.truefoundry.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return conditionIsTrue(found, "Available")
	})
	for _, name := range []string{apiServer, resolver} {
		i.check(i.AwaitRollout(i.ctx, name))
	}
	i.await("permissions are kept for an uninstall", func(ctx context.Context) error {
		options := metav1.GetOptions{}
		account, accountErr := i.Host.CoreV1().ServiceAccounts(cluster.SystemNamespace).Get(ctx, apiServer, options)
		role, roleErr := i.Host.RbacV1().ClusterRoles().Get(ctx, apiServer, options)
		binding, bindingErr := i.Host.RbacV1().ClusterRoleBindings().Get(ctx, apiServer, options)
		for _, err := range []error{accountErr, roleErr, bindingErr} {
			if err != nil {
				return err
			}
		}
		for _, object := range []metav1.Object{account, role, binding} {
			if !slices.Contains(object.GetFinalizers(), uninstallFinalizer) {
				return fmt.Errorf("%T %s has the finalizers %v", object, object.GetName(), object.GetFinalizers())
			}
		}
		return nil
	})
}

// conditionIsTrue returns an error unless a condition of an object is true.
func conditionIsTrue(object *unstructured.Unstructured, conditionType string) error {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, each := range conditions {
		condition, _ := each.(map[string]any)
		if condition["type"] == conditionType && condition["status"] == string(metav1.ConditionTrue) {
			return nil
		}
	}
	return fmt.Errorf("the conditions of %s are %v", object.GetName(), conditions)
}

// enforceRestricted has the namespace of the product enforce the restricted Pod Security
// Standard, as docs/install.md says.
func (i *installation) enforceRestricted() {
	i.Helper()
	patch := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	_, err := i.Host.CoreV1().Namespaces().Patch(i.ctx, cluster.SystemNamespace, types.MergePatchType, patch, metav1.PatchOptions{})
	i.check(err)
}

// image is the name of an image that `make images` has built.
func (i *installation) image(name string) (repository, tag string) {
	i.Helper()
	text, err := os.ReadFile(filepath.Join(i.Repository, "_output", "images", name+".name"))
	i.check(err)
	reference := strings.TrimSpace(string(text))
	colon := strings.LastIndex(reference, ":")
	if colon < 0 {
		i.Fatalf("the image %q has no tag", reference)
	}
	return reference[:colon], reference[colon+1:]
}

// remove deletes the product and what it has stored, whichever way it was installed.
func (i *installation) remove(ctx context.Context) error {
	deploy := filepath.Join(i.Repository, "artifacts", "deploy")
	if _, err := i.Dynamic.Resource(storedKinds).Get(ctx, "storedelastiservices."+storageGroup, metav1.GetOptions{}); err == nil {
		kinds := filepath.Join(deploy, "storage", "customresourcedefinitions.yaml")
		if err := i.kubectl(ctx, "", "annotate", "--overwrite", "--filename="+kinds, storageGroup+"/allow-deletion=true"); err != nil {
			return err
		}
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading what the product has stored: %w", err)
	}
	for _, part := range []string{"base", "storage"} {
		if err := i.kubectl(ctx, "", "delete", "--kustomize="+filepath.Join(deploy, part), "--ignore-not-found", "--timeout=4m"); err != nil {
			return err
		}
	}
	// What Helm's hooks leave when the check fails, but for the namespace.
	return i.kubectl(ctx, "", "delete", "clusterroles,clusterrolebindings", "elasti-check", "--ignore-not-found")
}

func (i *installation) kubectl(ctx context.Context, input string, arguments ...string) error {
	_, err := i.RunKubectl(ctx, i.Kubeconfig, input, arguments...)
	return err
}

// cleanUp deletes the product and the namespace of the applications.
func (i *installation) cleanUp(started time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.ctx), cleanUpTimeout)
	defer cancel()
	if i.Failed() {
		i.Log(i.Diagnose(ctx, i.namespace, started))
	}
	if err := i.remove(ctx); err != nil {
		i.Error(err)
	}
	if err := i.DeleteNamespace(ctx, i.namespace); err != nil {
		i.Error(err)
	}
	if err := i.AwaitNamespaceDeleted(ctx, i.namespace); err != nil {
		i.Error(err)
	}
}

// deleteSystemNamespace deletes the namespace of the product, once that is uninstalled.
func (i *installation) deleteSystemNamespace() {
	i.Helper()
	i.check(i.DeleteNamespace(i.ctx, cluster.SystemNamespace))
	i.check(i.AwaitNamespaceDeleted(i.ctx, cluster.SystemNamespace))
}

// createSystemNamespace creates the namespace of the product, which the chart does not have.
func (i *installation) createSystemNamespace() {
	i.Helper()
	_, err := i.Host.CoreV1().Namespaces().Create(i.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.SystemNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		i.Fatal(err)
	}
}

// TestMain rejects any cluster but the local one: the tests delete what is stored.
func TestMain(m *testing.M) {
	socket := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "containerd.sock")
	if _, err := os.Stat(socket); err != nil {
		fmt.Fprintln(os.Stderr, "KUBECONFIG is not that of the local cluster, from which the product is deleted with what it has stored: `make test-install` sets it")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
