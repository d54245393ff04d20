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

// Package buildinfo says which build of the product a process runs, as a metric. It knows
// nothing of what else the process measures. Begin with NewMetric.
package buildinfo

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/version"
)

// NewMetric returns a metric that is always 1, and has the build as its labels.
func NewMetric(name string) prometheus.Collector {
	info := version.Get()
	metric := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: name,
		Help: "Always 1. The labels say which build runs: the version, the commit of Git that it was built from, and the version of Go.",
	}, []string{"version", "commit", "go_version"})
	metric.WithLabelValues(info.GitVersion, info.GitCommit, info.GoVersion).Set(1)
	return metric
}
