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

package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

const (
	// watchUsers is how many ElastiServices have targets of one kind.
	watchUsers = 40
	// goroutineNoise is how much the number of goroutines may differ for other
	// reasons, such as connections that are idle for a while.
	goroutineNoise = 20
	// goroutinePatience is longer than idle connections are kept.
	goroutinePatience = 3 * time.Minute
)

// serverMetric is the sum of those samples of a metric of the server that have a
// label value, or of all without one.
func serverMetric(ctx context.Context, t *testing.T, server *environment.Server, name, labelValue string) (float64, error) {
	t.Helper()
	config := rest.CopyConfig(shared.Admin)
	config.Host = fmt.Sprintf("https://%s:%d", server.Address, server.Port)
	config.CAData = nil
	config.Insecure = true
	text, err := elastiClient(t, config).ElastiV1alpha1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return 0, fmt.Errorf("parsing the metrics: %w", err)
	}
	sum := 0.0
	for _, sample := range families[name].GetMetric() {
		matches := labelValue == ""
		for _, label := range sample.GetLabel() {
			matches = matches || label.GetValue() == labelValue
		}
		if matches {
			sum += sample.GetGauge().GetValue()
		}
	}
	return sum, nil
}

// Many ElastiServices of one kind share one watch; when the last of them goes,
// the watch goes, and nothing of what they started is left.
func TestWatchesAndGoroutinesEndWithTheirLastUser(t *testing.T) {
	kind := customKind("watched.example.com")
	kind.install(t)
	resource := kind.groupVersionResource(t).GroupResource().String()
	goroutines := func(ctx context.Context) (float64, error) {
		return serverMetric(ctx, t, shared.Server, "go_goroutines", "")
	}
	watches := func(ctx context.Context) (float64, error) {
		return serverMetric(ctx, t, shared.Server, "elasti_operator_informer_count", resource)
	}
	before, err := goroutines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before == 0 {
		t.Fatal("the server tells of no goroutines")
	}

	namespace := newNamespace(t)
	for i := range watchUsers {
		object := kind.elastiService()
		object.Name = fmt.Sprintf("app-%02d", i)
		object.Spec.Service, object.Spec.ScaleTargetRef.Name = object.Name, object.Name
		createElastiService(t, namespace, object)
	}
	eventually(t, "there is one watch of the kind", func(ctx context.Context) string {
		count, err := watches(ctx)
		if err != nil {
			return err.Error()
		}
		if count != 1 {
			return fmt.Sprintf("there are %v", count)
		}
		return ""
	})
	eventually(t, "all of them know that their targets are missing", func(ctx context.Context) string {
		list, err := elastiServices(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			if len(list.Items[i].Status.Conditions) == 0 {
				return list.Items[i].Name + " has no conditions"
			}
		}
		return ""
	})

	if err := elastiServices(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatalf("deleting the ElastiServices: %v", err)
	}
	eventuallyWithin(t, goroutinePatience, "the watch and what it started have ended", func(ctx context.Context) string {
		count, err := watches(ctx)
		if err != nil {
			return err.Error()
		}
		after, err := goroutines(ctx)
		if err != nil {
			return err.Error()
		}
		if count != 0 || after > before+goroutineNoise {
			return fmt.Sprintf("there are %v watches and %v goroutines, were %v", count, after, before)
		}
		return ""
	})
}
