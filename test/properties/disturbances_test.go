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

package properties

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// resolverPods returns the pods of the resolvers in the order of their names.
func (w *testbed) resolverPods(ctx context.Context) ([]string, error) {
	pods, err := w.control.Kubernetes.CoreV1().Pods(environment.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + environment.ResolverName})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil && pods.Items[i].Status.Phase == corev1.PodRunning {
			names = append(names, pods.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// onAResolver does something to one of the resolvers, if there are any.
func (w *testbed) onAResolver(ctx context.Context, random *rand.Rand, do func(pod string) error) error {
	chosen := random.IntN(2)
	pods, err := w.resolverPods(ctx)
	if err != nil || len(pods) == 0 {
		return err
	}
	return do(pods[chosen%len(pods)])
}

func makeResolverUnready(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	return "a resolver gets unready", w.onAResolver(ctx, random, func(pod string) error {
		return w.control.Node.SetReady(ctx, environment.SystemNamespace, pod, false)
	})
}

func makeResolversReady(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	const what = "all resolvers get ready"
	pods, err := w.resolverPods(ctx)
	if err != nil {
		return what, err
	}
	for _, pod := range pods {
		if err := w.control.Node.SetReady(ctx, environment.SystemNamespace, pod, true); err != nil {
			return what, err
		}
	}
	return what, nil
}

func replaceResolver(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	return "a resolver is replaced", w.onAResolver(ctx, random, func(pod string) error {
		return w.control.Kubernetes.CoreV1().Pods(environment.SystemNamespace).Delete(ctx, pod, metav1.DeleteOptions{})
	})
}

// deleteNamespace deletes the namespace of a tenant, which gets a new one.
func deleteNamespace(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	number := random.IntN(len(w.tenants))
	namespace := w.tenants[number].namespace
	what := "delete namespace " + namespace
	if err := w.control.Kubernetes.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
		return what, err
	}
	w.deletedNamespaces[namespace], w.touched.namespaces[namespace] = true, true
	w.moves++
	return what, w.createTenant(ctx, number)
}

func restartServer(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	w.disturb()
	number := random.IntN(len(w.servers.replicas))
	replica := w.servers.replicas[number]
	what := fmt.Sprintf("restart server %d", number)
	if err := replica.Stop(ctx); err != nil {
		w.fail("%v", err)
		return what, err
	}
	return what, w.expectStarted(replica.Start(ctx))
}

func killServer(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	w.disturb()
	number := random.IntN(len(w.servers.replicas))
	replica := w.servers.replicas[number]
	replica.Kill()
	return fmt.Sprintf("kill server %d and start it again", number), w.expectStarted(replica.Start(ctx))
}

// changeWhileNoControllerRuns kills both servers and starts one, which serves the API and
// does not lead before the Lease of the previous leader has expired. Meanwhile a tenant
// changes a sleeping ElastiService, and then the other server starts.
func changeWhileNoControllerRuns(ctx context.Context, w *testbed, random *rand.Rand) (string, error) {
	w.disturb()
	for _, replica := range w.servers.replicas {
		replica.Kill()
		// Its endpoint must not receive requests.
		if err := w.expectStarted(replica.Stop(ctx)); err != nil {
			return "kill all servers", err
		}
	}
	what := []string{"while no controller runs:"}
	if err := w.expectStarted(w.servers.replicas[0].Start(ctx)); err != nil {
		return what[0], err
	}
	var errs []error
	for range 1 + random.IntN(4) {
		change := []action{changeTarget, changeTarget, changeService, changeServiceToMissing, deletePrivateService, editPrivateService, deleteService}[random.IntN(7)]
		did, err := change(ctx, w, random)
		what = append(what, did)
		errs = append(errs, err)
	}
	errs = append(errs, w.expectStarted(w.servers.replicas[1].Start(ctx)))
	return strings.Join(what, "\n  "), errors.Join(errs...)
}

// disturb records that there may be no controller for a while.
func (w *testbed) disturb() { w.disturbed = time.Now() }

// expectStarted records that a server did not start, or its store.
func (w *testbed) expectStarted(err error) error {
	if err != nil {
		w.fail("%v", err)
	}
	return err
}

func backUpStore(_ context.Context, w *testbed, _ *rand.Rand) (string, error) {
	w.disturb()
	return "back up the store, which is away meanwhile", w.expectStarted(w.servers.whileStoreIsAway(w.servers.save))
}

func restoreStore(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	if !w.servers.hasBackup() {
		return "restore nothing: there is no backup", nil
	}
	w.storeChanged()
	return "restore the store", w.expectStarted(w.servers.whileStopped(ctx, w.servers.restore))
}

func loseStore(ctx context.Context, w *testbed, _ *rand.Rand) (string, error) {
	w.storeChanged()
	return "lose the store", w.expectStarted(w.servers.whileStopped(ctx, w.servers.empty))
}

// storeChanged forgets the wakes: a store that is restored can request sleep.
func (w *testbed) storeChanged() {
	w.disturb()
	clear(w.wakes)
	w.mayBeLost = true
}
