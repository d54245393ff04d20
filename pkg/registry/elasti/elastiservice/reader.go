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

package elastiservice

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// Reader lists and watches ElastiServices inside of the server, as clients do,
// but without requests: nothing is encoded, sent or authorized. It is safe for
// concurrent use.
type Reader struct {
	elastiServices *REST
}

// List returns the ElastiServices of a namespace, or of all when it is empty.
// The caller may change the result.
func (r *Reader) List(ctx context.Context, namespace string, options metav1.ListOptions) (*v1alpha1.ElastiServiceList, error) {
	internal, err := internalListOptions(options)
	if err != nil {
		return nil, err
	}
	found, err := r.elastiServices.List(genericapirequest.WithNamespace(ctx, namespace), internal)
	if err != nil {
		return nil, err
	}
	converted := &v1alpha1.ElastiServiceList{}
	if err := v1alpha1.Convert_elasti_ElastiServiceList_To_v1alpha1_ElastiServiceList(found.(*elasti.ElastiServiceList), converted, nil); err != nil {
		return nil, fmt.Errorf("converting a list of elastiservices: %w", err)
	}
	// The items are those of the watch cache.
	return converted.DeepCopy(), nil
}

// Watch returns the changes of the ElastiServices of a namespace, or of all when
// it is empty. The caller may change the objects. The watch ends with ctx, with
// the timeout of the options, or when it is stopped.
func (r *Reader) Watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	internal, err := internalListOptions(options)
	if err != nil {
		return nil, err
	}
	cancel := context.CancelFunc(func() {})
	if options.TimeoutSeconds != nil {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*options.TimeoutSeconds)*time.Second)
	}
	events, err := r.elastiServices.Watch(genericapirequest.WithNamespace(ctx, namespace), internal)
	if err != nil {
		cancel()
		return nil, err
	}
	converted := &convertedWatch{
		events:  events,
		result:  make(chan watch.Event),
		stopped: make(chan struct{}),
	}
	go func() {
		defer cancel()
		converted.run(ctx)
	}()
	return converted, nil
}

// convertEvent returns an event in the external version. The object may share
// memory with that of the original event.
func convertEvent(event watch.Event) (watch.Event, error) {
	object := event.Object
	if shared, ok := object.(runtime.CacheableObject); ok {
		object = shared.GetObject()
	}
	elastiService, ok := object.(*elasti.ElastiService)
	if !ok {
		// A Status that says why the watch failed.
		return event, nil
	}
	converted := &v1alpha1.ElastiService{}
	if err := v1alpha1.Convert_elasti_ElastiService_To_v1alpha1_ElastiService(elastiService, converted, nil); err != nil {
		return watch.Event{}, fmt.Errorf("converting elastiservice %s/%s: %w", elastiService.Namespace, elastiService.Name, err)
	}
	return watch.Event{Type: event.Type, Object: converted}, nil
}

func internalListOptions(options metav1.ListOptions) (*internalversion.ListOptions, error) {
	internal := &internalversion.ListOptions{}
	if err := internalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&options, internal, nil); err != nil {
		return nil, fmt.Errorf("reading the options of a list: %w", err)
	}
	internalversion.SetListOptionsDefaults(internal, true)
	return internal, nil
}

// convertedWatch forwards the events of another watch in the external version.
type convertedWatch struct {
	events watch.Interface
	result chan watch.Event

	stop    sync.Once
	stopped chan struct{}
}

// Stop implements watch.Interface.
func (w *convertedWatch) Stop() { w.stop.Do(func() { close(w.stopped) }) }

// ResultChan implements watch.Interface.
func (w *convertedWatch) ResultChan() <-chan watch.Event { return w.result }

// run ends when the other watch ends, when this one is stopped, or with ctx.
func (w *convertedWatch) run(ctx context.Context) {
	defer close(w.result)
	defer w.events.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case event, open = <-w.events.ResultChan():
		case <-w.stopped:
		case <-ctx.Done():
		}
		if !open {
			return
		}
		converted, err := convertEvent(event)
		if err != nil {
			converted = watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}}
		}
		select {
		case w.result <- converted:
		case <-w.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}
