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

package durability

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiinformers "github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions"
	elastilisters "github.com/truefoundry/elasti-apiserver/pkg/generated/listers/elasti/v1alpha1"
)

// hostGrace is the time that kube-apiserver has after SIGTERM. It waits for open watches
// longer than that.
const hostGrace = 5 * time.Second

// kube-apiserver of the host cluster, which stores the ElastiServices, is restarted again
// and again under writes through two replicas.
func TestRestartsOfTheHostLoseNoObjectAndStickNoWatch(t *testing.T) {
	replicas := hostCluster.start(t, 2)
	asleep := newApplication(t, 0)
	asleep.manage(t)
	asleep.awaitMode(t, v1alpha1.ModeProxy)
	ways := map[string]*rest.Config{"through the aggregator": throughTheAggregator(), "at the second replica": directTo(replicas[1])}
	namespace := newNamespace(t)
	informers := map[string]elastilisters.ElastiServiceNamespaceLister{}
	for way, config := range ways {
		informers[way] = startInformer(t, config, namespace)
	}
	load := startLoad(t, namespace)
	for i := range *restarts {
		load.awaitAcknowledged(t, writesBeforeKill)
		restartHost(t, i%2 == 1)
		load.awaitAcknowledged(t, writesBeforeKill)
		resume := load.pause(t)
		for way, informer := range informers {
			load.awaitConverged(t, fmt.Sprintf("after restart %d the informer %s has what is stored", i+1, way), informer)
		}
		resume()
		for _, config := range ways {
			asleep.expectWake(t, elastiServices(t, config, asleep.namespace))
			asleep.scale(t, 0)
		}
	}
	load.stop()
	load.expectStored(t)
	load.expectServicesFree(t)
}

// restartHost restarts kube-apiserver, with SIGKILL or with SIGTERM.
func restartHost(t *testing.T, kill bool) {
	t.Helper()
	var err error
	if kill {
		err = shared.RestartAPIServer(t.Context())
	} else {
		err = shared.RestartAPIServerGracefully(t.Context(), hostGrace)
	}
	if err != nil {
		t.Fatal(errors.Join(errors.New("restarting kube-apiserver"), err))
	}
}

// startInformer starts an informer of the ElastiServices of a namespace, which ends with
// the test. No timeout ends its watches.
func startInformer(t *testing.T, config *rest.Config, namespace string) elastilisters.ElastiServiceNamespaceLister {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Timeout = 0
	factory := elastiinformers.NewSharedInformerFactoryWithOptions(clientset(t, config), 0, elastiinformers.WithNamespace(namespace))
	informer := factory.Elasti().V1alpha1().ElastiServices()
	synced := informer.Informer().HasSynced
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	factory.Start(ctx.Done())
	eventually(t, "an informer has synced", func(context.Context) string {
		if !synced() {
			return "it has not"
		}
		return ""
	})
	return informer.Lister().ElastiServices(namespace)
}

// awaitConverged waits until an informer has what is stored in the namespace of the load,
// which pauses.
func (l *load) awaitConverged(t *testing.T, what string, informer elastilisters.ElastiServiceNamespaceLister) {
	t.Helper()
	eventually(t, what, func(ctx context.Context) string {
		stored, err := l.client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		observed, err := informer.List(labels.Everything())
		if err != nil {
			return err.Error()
		}
		return difference(stored.Items, observed)
	})
}

// difference says in what two sets of objects differ.
func difference(stored []v1alpha1.ElastiService, observed []*v1alpha1.ElastiService) string {
	states := make(map[string]string, len(observed))
	for _, object := range observed {
		states[object.Name] = stateOf(object)
	}
	for i := range stored {
		name := stored[i].Name
		if want, has := stateOf(&stored[i]), states[name]; has != want {
			return fmt.Sprintf("%s is stored as %s, and observed as %q", name, want, has)
		}
		delete(states, name)
	}
	for name, has := range states {
		return fmt.Sprintf("%s is not stored, and observed as %q", name, has)
	}
	return ""
}

func stateOf(object *v1alpha1.ElastiService) string {
	return fmt.Sprintf("%s at version %s", object.UID, object.ResourceVersion)
}
