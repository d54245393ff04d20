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

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
)

// watchUsers is how many ElastiServices have targets of one kind.
const watchUsers = 40

// atServer reads a path of the server itself.
func atServer(ctx context.Context, t *testing.T, server *environment.Server, path, query string) (string, error) {
	t.Helper()
	config := rest.CopyConfig(shared.Admin)
	config.Host = fmt.Sprintf("https://%s:%d", server.Address, server.Port)
	config.CAData = nil
	config.Insecure = true
	request := elastiClient(t, config).ElastiV1alpha1().RESTClient().Get().AbsPath(path)
	if name, value, ok := strings.Cut(query, "="); ok {
		request.Param(name, value)
	}
	text, err := request.DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("reading %s of the server: %w", path, err)
	}
	return string(text), nil
}

// goroutinesOf returns how many goroutines of the server are in a package, or were started
// there.
func goroutinesOf(ctx context.Context, t *testing.T, server *environment.Server, packageName string) (int, error) {
	t.Helper()
	text, err := atServer(ctx, t, server, "/debug/pprof/goroutine", "debug=2")
	if err != nil {
		return 0, err
	}
	count := 0
	for stack := range strings.SplitSeq(text, "\n\n") {
		if strings.Contains(stack, packageName+".") {
			count++
		}
	}
	return count, nil
}

// serverMetric returns the sum of the samples of a metric of the server, of those with a
// label value if that is given.
func serverMetric(ctx context.Context, t *testing.T, server *environment.Server, name, labelValue string) (float64, error) {
	t.Helper()
	text, err := atServer(ctx, t, server, "/metrics", "")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
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

// Many ElastiServices with one kind of target share one watch. The watch and its goroutines
// end with the deletion of the last of them.
func TestWatchesAndGoroutinesEndWithTheirLastUser(t *testing.T) {
	kind := customKind("watched.example.com")
	kind.install(t)
	resource := kind.groupVersionResource(t).GroupResource().String()
	goroutines := func(ctx context.Context) (int, error) {
		return goroutinesOf(ctx, t, shared.Server, "pkg/controller/informers")
	}
	watches := func(ctx context.Context) (float64, error) {
		return serverMetric(ctx, t, shared.Server, "elasti_operator_informer_count", resource)
	}
	before, err := goroutines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if before == 0 {
		t.Fatal("the profile of the server has no goroutines of watches, and there are always some")
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
	if during, err := goroutines(t.Context()); err != nil || during <= before {
		t.Errorf("with one more watch there are %d goroutines of watches, were %d (error: %v)", during, before, err)
	}
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
	eventually(t, "the watch and what it started have ended", func(ctx context.Context) string {
		count, err := watches(ctx)
		if err != nil {
			return err.Error()
		}
		after, err := goroutines(ctx)
		if err != nil {
			return err.Error()
		}
		if count != 0 || after > before {
			return fmt.Sprintf("there are %v watches and %d goroutines of watches, were %d", count, after, before)
		}
		return ""
	})
}
