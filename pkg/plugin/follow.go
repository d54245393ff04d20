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

package plugin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

const (
	// redrawPeriod is the time between two drawings of a followed table.
	redrawPeriod = time.Second
	// clearScreen moves the cursor of a terminal to its start and erases what follows
	// (ECMA-48, CUP and ED).
	clearScreen = "\x1b[H\x1b[J"
)

// follow draws the table of the selected ElastiServices, again and again, until ctx ends.
// What keeps it from being current is written below it.
func (t *tableOfStates) follow(ctx context.Context, client elasticlient.ElastiServicesGetter, namespace, selector string, names []string) error {
	informer := cache.NewSharedIndexInformer(listWatch(client, namespace, metav1.ListOptions{LabelSelector: selector}), &v1alpha1.ElastiService{}, 0, cache.Indexers{})
	problem := &problem{}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { problem.set(err) }); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	ticker := time.NewTicker(redrawPeriod)
	defer ticker.Stop()
	for {
		if informer.HasSynced() || problem.get() != nil {
			if err := t.draw(informer.GetStore(), names, problem.get()); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (t *tableOfStates) draw(store cache.Store, names []string, problem error) error {
	var shown []v1alpha1.ElastiService
	for _, object := range store.List() {
		elastiService := object.(*v1alpha1.ElastiService)
		if len(names) == 0 || slices.Contains(names, elastiService.Name) {
			shown = append(shown, *elastiService)
		}
	}
	var screen bytes.Buffer
	screen.WriteString(clearScreen)
	if err := t.print(&screen, shown, time.Now()); err != nil {
		return err
	}
	if problem != nil {
		fmt.Fprintf(&screen, "\nThis may not be current: %v\n", explained(problem))
	}
	_, err := screen.WriteTo(t.session.streams.Out)
	return err
}

// problem is what keeps a watch from being current. It is safe for concurrent use.
type problem struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

// problemPeriod is how long a problem is shown: a watch that has begun again does not say
// so.
const problemPeriod = 30 * time.Second

func (p *problem) set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.at = err, time.Now()
}

func (p *problem) get() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) > problemPeriod {
		return nil
	}
	return p.err
}

// listWatch lists and watches the ElastiServices of a namespace.
func listWatch(client elasticlient.ElastiServicesGetter, namespace string, selected metav1.ListOptions) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector, options.FieldSelector = selected.LabelSelector, selected.FieldSelector
			return client.ElastiServices(namespace).List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector, options.FieldSelector = selected.LabelSelector, selected.FieldSelector
			return client.ElastiServices(namespace).Watch(ctx, options)
		},
	}
}
