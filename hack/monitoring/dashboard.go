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
	"encoding/json"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// hours turns seconds into hours, and gibibytes bytes into gibibytes.
const (
	hours     = " / 3600"
	gibibytes = " / 1024 / 1024 / 1024"
)

// panel is one panel. All of its queries have the same unit.
type panel struct {
	title, description, unit string
	// single shows the last value as a number, instead of a graph.
	single  bool
	queries []query
}

// query is a query with the name of its series.
type query struct{ expression, legend string }

// section is a row of panels.
type section struct {
	title  string
	panels []panel
}

// sections are those of the dashboard: what sleeps and what it saves, cold starts, one
// service, and the components.
func sections() []section {
	return []section{
		{"What sleeps, and what it saves", []panel{
			{title: "Asleep now", unit: units.Short, single: true, queries: []query{{"sum(elasti_operator_asleep)", "targets"}}},
			{title: "ElastiServices", unit: units.Short, single: true, queries: []query{{"count(elasti_operator_asleep)", "ElastiServices"}}},
			{title: "Cores saved now", unit: units.Short, single: true, queries: []query{{"sum(rate(elasti_operator_cpu_core_seconds_saved_total[$__rate_interval]))", "cores"}}},
			{title: "Memory saved now", unit: units.BytesIEC, single: true, queries: []query{{"sum(rate(elasti_operator_memory_byte_seconds_saved_total[$__rate_interval]))", "memory"}}},
			{title: "Core-hours saved", description: "In the time range of the dashboard.", unit: units.Short, single: true, queries: []query{{"sum(increase(elasti_operator_cpu_core_seconds_saved_total[$__range]))" + hours, "core-hours"}}},
			{title: "Money saved", description: "In the time range of the dashboard, by the prices above, in their currency.", unit: units.Short, single: true, queries: []query{{
				"sum(increase(elasti_operator_cpu_core_seconds_saved_total[$__range]))" + hours + " * $core_price" +
					" + sum(increase(elasti_operator_memory_byte_seconds_saved_total[$__range]))" + gibibytes + hours + " * $memory_price", "money",
			}}},
			{title: "Targets", unit: units.Short, queries: []query{{"sum(elasti_operator_asleep)", "asleep"}, {"count(elasti_operator_asleep) - sum(elasti_operator_asleep)", "awake"}}},
			{title: "Cores saved by namespace", unit: units.Short, queries: []query{{"sum by (namespace) (rate(elasti_operator_cpu_core_seconds_saved_total[$__rate_interval]))", "{{namespace}}"}}},
			{title: "Decisions", unit: units.Short, queries: []query{{"sum by (action) (increase(elasti_operator_sleep_decisions_total{action!=\"none\"}[$__rate_interval]))", "{{action}}"}}},
			{title: "Evaluations of triggers", unit: units.Short, queries: []query{{"sum by (type, result) (rate(elasti_operator_trigger_evaluations_total[$__rate_interval]))", "{{type}} {{result}}"}}},
		}},
		{"Cold starts", []panel{
			{title: "How long requests are held", unit: units.Seconds, queries: percentiles("elasti_resolver_hold_seconds_bucket", "")},
			{title: "Until the wake call returns", unit: units.Seconds, queries: percentiles("elasti_resolver_cold_start_seconds_bucket", `{step="wake"}`)},
			{title: "Until a pod is ready", unit: units.Seconds, queries: percentiles("elasti_resolver_cold_start_seconds_bucket", `{step="pod"}`)},
			{title: "Until the request has a pod", unit: units.Seconds, queries: percentiles("elasti_resolver_cold_start_seconds_bucket", `{step="release"}`)},
			{title: "Wakes by result", unit: units.RequestsPerSecond, queries: []query{{"sum by (result) (rate(elasti_operator_wake_seconds_count[$__rate_interval]))", "{{result}}"}}},
			{title: "Duration of wakes in elasti-apiserver", unit: units.Seconds, queries: percentiles("elasti_operator_wake_seconds_bucket", `{result="scaled"}`)},
		}},
		{"Service $namespace/$service", []panel{
			{title: "Held and forwarded", unit: units.Short, queries: []query{
				{`sum(elasti_resolver_queued_count{namespace="$namespace", source="$service"})`, "held"},
				{`sum(elasti_resolver_in_flight{namespace="$namespace", service="$service"})`, "with a pod"},
			}},
			{title: "Requests and connections that ended", unit: units.RequestsPerSecond, queries: []query{{`sum by (protocol, outcome) (rate(elasti_resolver_requests_total{namespace="$namespace", service="$service"}[$__rate_interval]))`, "{{protocol}} {{outcome}}"}}},
			{title: "How held ones ended", unit: units.RequestsPerSecond, queries: []query{{`sum by (outcome) (rate(elasti_resolver_held_total{namespace="$namespace", service="$service"}[$__rate_interval]))`, "{{outcome}}"}}},
			{title: "Time of a cold start, 90th percentile of each step", unit: units.Seconds, queries: []query{{`histogram_quantile(0.9, sum by (le, step) (rate(elasti_resolver_cold_start_seconds_bucket{namespace="$namespace", service="$service"}[$__rate_interval])))`, "{{step}}"}}},
			{title: "Bytes", unit: units.BytesIEC, queries: []query{{`sum by (direction) (rate(elasti_resolver_bytes_total{namespace="$namespace", service="$service"}[$__rate_interval]))`, "{{direction}}"}}},
			{title: "Wake calls", unit: units.RequestsPerSecond, queries: []query{{`sum by (result) (rate(elasti_resolver_wake_calls_total{namespace="$namespace", service="$service"}[$__rate_interval]))`, "{{result}}"}}},
		}},
		{"Health of the components", []panel{
			{title: "Replicas", unit: units.Short, queries: []query{
				{"sum by (version) (elasti_operator_build_info)", "elasti-apiserver {{version}}"},
				{"sum by (version) (elasti_resolver_build_info)", "elasti-resolver {{version}}"},
				{"sum(elasti_operator_leading)", "leaders"},
			}},
			{title: "ElastiServices that are not ready", unit: units.Short, queries: []query{{"count(elasti_operator_ready == 0) or vector(0)", "not ready"}}},
			{title: "Failed syncs", unit: units.RequestsPerSecond, queries: []query{{`sum by (error) (rate(elasti_operator_reconcile_count{error!=""}[$__rate_interval]))`, "{{error}}"}}},
			{title: "Duration of syncs", unit: units.Seconds, queries: percentiles("elasti_operator_reconcile_bucket", "")},
			{title: "Queues", unit: units.Short, queries: []query{
				{"sum by (queue) (elasti_operator_queue_depth)", "{{queue}}"},
				{"sum(elasti_operator_sleep_queue_depth)", "sleep"},
				{"sum(elasti_operator_waiting_for_wake)", "wakes"},
			}},
			{title: "Memory of resolvers for requests", unit: units.PercentUnit, queries: []query{{"elasti_resolver_held_bytes / elasti_resolver_held_bytes_limit", "{{pod}}"}}},
			{title: "Connections of resolvers", unit: units.PercentUnit, queries: []query{{"elasti_resolver_connections / elasti_resolver_connections_limit", "{{pod}}"}}},
			{title: "Rejected connections", unit: units.RequestsPerSecond, queries: []query{{"sum by (reason) (rate(elasti_resolver_connections_rejected_total[$__rate_interval]))", "{{reason}}"}}},
			{title: "Proxy ports in use", unit: units.PercentUnit, queries: []query{{"max(elasti_operator_proxy_ports) / max(elasti_operator_proxy_ports_limit)", "proxy ports"}}},
		}},
	}
}

// percentiles returns the queries of the percentiles of a histogram.
func percentiles(buckets, matchers string) []query {
	var queries []query
	for _, percentile := range []int{50, 90, 99} {
		queries = append(queries, query{
			fmt.Sprintf("histogram_quantile(0.%d, sum by (le) (rate(%s%s[$__rate_interval])))", percentile, buckets, matchers), fmt.Sprintf("p%d", percentile),
		})
	}
	return queries
}

// dashboardJSON returns the dashboard.
func dashboardJSON() ([]byte, error) {
	//nolint:staticcheck // Grafana before 12 has no second version.
	builder := dashboard.NewDashboardBuilder("elasti").
		Uid("elasti").
		Description("What sleeps and what that saves, cold starts, and the health of elasti-apiserver and elasti-resolver. Made by hack/monitoring.").
		Tags([]string{"elasti"}).
		Refresh("1m").
		Time("now-6h", "now").
		Tooltip(dashboard.DashboardCursorSyncCrosshair)
	for _, variable := range variables() {
		builder = builder.WithVariable(variable)
	}
	for _, section := range sections() {
		builder = builder.WithRow(dashboard.NewRowBuilder(section.title))
		for _, panel := range section.panels {
			builder = builder.WithPanel(panel.build())
		}
	}
	built, err := builder.Build()
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(built, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// datasource is the one that the user has chosen.
func datasource() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

func variables() []cog.Builder[dashboard.VariableModel] {
	price := func(name, label, value string) cog.Builder[dashboard.VariableModel] {
		return dashboard.NewTextBoxVariableBuilder(name).Label(label).
			DefaultValue(dashboard.StringOrMap{String: &value}).
			Current(dashboard.VariableOption{
				Text:  dashboard.StringOrArrayOfString{String: &value},
				Value: dashboard.StringOrArrayOfString{String: &value},
			})
	}
	values := func(name, label, query string) cog.Builder[dashboard.VariableModel] {
		return dashboard.NewQueryVariableBuilder(name).Label(label).
			Datasource(datasource()).
			Query(dashboard.StringOrMap{String: &query}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Sort(dashboard.VariableSortAlphabeticalAsc)
	}
	return []cog.Builder[dashboard.VariableModel]{
		dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"),
		price("core_price", "Price of a core-hour", "0.03"),
		price("memory_price", "Price of a GiB-hour", "0.004"),
		values("namespace", "Namespace", "label_values(elasti_resolver_in_flight, namespace)"),
		values("service", "Service", `label_values(elasti_resolver_in_flight{namespace="$namespace"}, service)`),
	}
}

// build returns the panel: six numbers, or two graphs, are beside each other.
func (p panel) build() cog.Builder[dashboard.Panel] {
	if p.single {
		builder := stat.NewPanelBuilder().Title(p.title).Description(p.description).Unit(p.unit).Datasource(datasource()).Span(4).Height(4)
		for _, query := range p.queries {
			builder = builder.WithTarget(query.build().Instant())
		}
		return builder
	}
	builder := timeseries.NewPanelBuilder().Title(p.title).Description(p.description).Unit(p.unit).Min(0).Datasource(datasource()).Span(12).Height(8)
	for _, query := range p.queries {
		builder = builder.WithTarget(query.build())
	}
	return builder
}

func (q query) build() *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Expr(q.expression).LegendFormat(q.legend).Datasource(datasource())
}
