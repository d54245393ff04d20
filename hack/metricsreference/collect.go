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

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/metrics/legacyregistry"

	apiserverapp "github.com/truefoundry/elasti-apiserver/pkg/apiserver/app"
	"github.com/truefoundry/elasti-apiserver/pkg/buildinfo"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/pkg/storage/embedded"
)

// metric is a row of the reference.
type metric struct {
	name, help string
	// kind is counter, gauge or histogram. It is empty when it is not known.
	kind   string
	labels []string
}

// serverMetrics returns the metrics of elasti-apiserver: those of the product, and those
// that the libraries of Kubernetes register.
func serverMetrics() (own, libraries []metric, err error) {
	recorded := &recorder{}
	apiserverapp.NewMetrics(recorded, nil)
	embedded.RegisterMetrics(recorded, nil)
	if own, err = recorded.metrics(); err != nil {
		return nil, nil, err
	}
	// Installing the handler registers what the generic server measures.
	routes.DefaultMetrics{}.Install(mux.NewPathRecorderMux("metricsreference"))
	registry, ok := legacyregistry.Registerer().(prometheus.Collector)
	if !ok {
		return nil, nil, errors.New("the registry of the libraries does not describe its metrics")
	}
	if libraries, err = describe(registry); err != nil {
		return nil, nil, err
	}
	// These depend on the version of Go and on the machine.
	libraries = slices.DeleteFunc(libraries, func(m metric) bool {
		return strings.HasPrefix(m.name, "go_") || strings.HasPrefix(m.name, "process_")
	})
	return own, libraries, nil
}

// resolverMetrics returns the metrics of elasti-resolver.
func resolverMetrics() ([]metric, error) {
	recorded := &recorder{}
	recorded.MustRegister(buildinfo.NewMetric("elasti_resolver_build_info"))
	if _, err := metrics.New(recorded, nil); err != nil {
		return nil, err
	}
	return recorded.metrics()
}

// recorder is a registerer that keeps what is registered, and has nothing collected: the
// parts that are measured do not exist.
type recorder struct{ collectors []prometheus.Collector }

var _ prometheus.Registerer = &recorder{}

// Register keeps a collector.
func (r *recorder) Register(collector prometheus.Collector) error {
	r.collectors = append(r.collectors, collector)
	return nil
}

// MustRegister keeps collectors.
func (r *recorder) MustRegister(collectors ...prometheus.Collector) {
	r.collectors = append(r.collectors, collectors...)
}

// Unregister does nothing.
func (*recorder) Unregister(prometheus.Collector) bool { return false }

// metrics returns what was registered, by name.
func (r *recorder) metrics() ([]metric, error) {
	var all []metric
	for _, collector := range r.collectors {
		described, err := describe(collector)
		if err != nil {
			return nil, err
		}
		for i := range described {
			described[i].kind = kindOf(collector, described[i].name)
		}
		all = append(all, described...)
	}
	sortByName(all)
	return all, nil
}

// kindOf returns the kind of a metric. A description does not have it. Metrics that are
// computed when they are collected have none before: the name says it.
func kindOf(collector prometheus.Collector, name string) string {
	switch collector.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec, prometheus.Gauge:
		return "gauge"
	case *prometheus.HistogramVec, prometheus.Histogram:
		return "histogram"
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

// describe returns the metrics of a collector, by name.
func describe(collector prometheus.Collector) ([]metric, error) {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		collector.Describe(descriptions)
	}()
	var described []metric
	var errs []error
	for description := range descriptions {
		parsed, err := parse(description.String())
		if err != nil {
			errs = append(errs, err)
		}
		described = append(described, parsed)
	}
	sortByName(described)
	// What has several sets of constant labels is described once for each.
	described = slices.CompactFunc(described, func(a, b metric) bool { return a.name == b.name })
	return described, errors.Join(errs...)
}

func sortByName(metrics []metric) {
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
}

// description is the text of a prometheus.Desc, which has no accessors.
var description = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), .*variableLabels: \{([^{}]*)\}\}$`)

// parse returns the metric of a description.
func parse(text string) (metric, error) {
	parts := description.FindStringSubmatch(text)
	if parts == nil {
		return metric{}, fmt.Errorf("the description of a metric has another form than expected: %s", text)
	}
	name, err := strconv.Unquote(parts[1])
	if err != nil {
		return metric{}, fmt.Errorf("the name in %s: %w", text, err)
	}
	help, err := strconv.Unquote(parts[2])
	if err != nil {
		return metric{}, fmt.Errorf("the help in %s: %w", text, err)
	}
	var labels []string
	for label := range strings.SplitSeq(parts[3], ",") {
		// Labels whose values are constrained are shown as c(name).
		label = strings.TrimSuffix(strings.TrimPrefix(label, "c("), ")")
		if label != "" {
			labels = append(labels, label)
		}
	}
	return metric{name: name, help: help, labels: labels}, nil
}
