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
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elasticlient "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/typed/elasti/v1alpha1"
)

// isAwake reports whether a pod of the target is ready.
func isAwake(elastiService *v1alpha1.ElastiService) bool {
	return elastiService.Status.ReadyReplicas > 0
}

// isAsleep reports whether the target sleeps.
func isAsleep(elastiService *v1alpha1.ElastiService) bool {
	state, _ := stateOf(elastiService)
	return state == Asleep
}

// await waits until each of the ElastiServices is as reached says, and shows the progress.
// The error at the end of the time has the last progress.
func (s *session) await(ctx context.Context, client elasticlient.ElastiServicesGetter, namespace string, names []string, timeout time.Duration, state State, reached func(*v1alpha1.ElastiService) bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var problems []error
	for _, name := range names {
		problems = append(problems, s.awaitOne(ctx, client, namespace, name, timeout, state, reached))
	}
	return errors.Join(problems...)
}

func (s *session) awaitOne(ctx context.Context, client elasticlient.ElastiServicesGetter, namespace, name string, timeout time.Duration, state State, reached func(*v1alpha1.ElastiService) bool) error {
	source := listWatch(client, namespace, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	last := ""
	_, err := watchtools.UntilWithSync(ctx, source, &v1alpha1.ElastiService{}, nil, func(event watch.Event) (bool, error) {
		elastiService, ok := event.Object.(*v1alpha1.ElastiService)
		switch {
		case !ok:
			return false, nil
		case event.Type == watch.Deleted:
			return false, fmt.Errorf("%s/%s was deleted", namespace, name)
		case reached(elastiService):
			return true, nil
		}
		if now := progress(elastiService); now != last {
			last = now
			s.progressf("%s/%s: %s\n", namespace, name, now)
		}
		return false, nil
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s/%s is not %s after %s: %s", namespace, name, state, timeout, last)
	}
	if err == nil {
		s.printf("%s/%s is %s\n", namespace, name, state)
	}
	return err
}
