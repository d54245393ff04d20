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

package embedded

import (
	"github.com/prometheus/client_golang/prometheus"
)

// RegisterMetrics registers metrics of a store with a registerer. They are read from the
// store when they are collected.
func RegisterMetrics(registerer prometheus.Registerer, server *Server) {
	registerer.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "elasti_operator_store_bytes",
			Help: "Size of the database of the embedded store, in bytes.",
		}, func() float64 { return float64(server.etcd.Server.Backend().Size()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "elasti_operator_store_used_bytes",
			Help: "Part of the database of the embedded store that is in use, history included, in bytes.",
		}, func() float64 { return float64(server.etcd.Server.Backend().SizeInUse()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "elasti_operator_store_quota_bytes",
			Help: "Size from which the embedded store rejects writes, in bytes.",
		}, func() float64 { return float64(server.quota) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "elasti_operator_store_rejects_writes",
			Help: "Whether the embedded store rejects writes for lack of space: 1 if it does, 0 otherwise.",
		}, func() float64 {
			if server.rejectsWrites() {
				return 1
			}
			return 0
		}),
	)
}
