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

package passive

import (
	"slices"
	"strings"
)

// anywhere marks a user agent that matches anywhere in a User-Agent value instead of
// at its beginning.
const anywhere = "*"

// maxAgents bounds the number of User-Agent values that are checked, and
// maxAgentBytes the bytes of each.
const (
	maxAgents     = 4
	maxAgentBytes = 512
)

// WellKnownUserAgents returns the user agents of common scrapers, health checkers and
// load balancers, as prefixes of the value of User-Agent or, with * in front, as
// substrings.
//
// A program that sends data to an application has another user agent than one that
// scrapes it, or sends the data with POST: "OpenTelemetry Collector" is the user agent
// of an exporter, and "otelcol" that of a scraper.
func WellKnownUserAgents() []string {
	return []string{
		// Scrapers.
		"Prometheus/", "GrafanaAgent/", "Alloy/", "vm_promscrape", "otelcol", "Datadog Agent/", "Elastic-Metricbeat/",
		// Probes.
		"kube-probe/", "Blackbox Exporter/", "Elastic-Heartbeat/", "synthetic-monitoring-agent/", "Uptime-Kuma/", "Gatus/",
		"check_http/", "Zabbix", "Consul Health Check", "Envoy/HC",
		// Load balancers and clouds.
		"ELB-HealthChecker/", "Amazon-Route53-Health-Check-Service",
		"GoogleHC/", "GoogleStackdriverMonitoring-UptimeChecks",
		"Edge Health Probe", "Load Balancer Agent", "Azure Traffic Manager Endpoint Monitor",
		anywhere + "Cloudflare-Healthchecks/", anywhere + "Cloudflare-Traffic-Manager/",
		// Services that watch from outside.
		anywhere + "UptimeRobot/", "Pingdom.com_bot_version_", "Better Stack Better Uptime Bot", "Better Uptime Bot",
		anywhere + "StatusCake", anywhere + "Site24x7", anywhere + "NewRelicPinger/", "Datadog/Synthetics",
		"FreshpingBot/", "HetrixTools Uptime Monitoring Bot", "DigitalOcean Uptime Probe", "updown.io daemon",
	}
}

// isWellKnown reports whether a User-Agent value is one of agents.
func isWellKnown(value string, agents []string) bool {
	value = value[:min(len(value), maxAgentBytes)]
	return slices.ContainsFunc(agents, func(agent string) bool {
		if marked, ok := strings.CutPrefix(agent, anywhere); ok {
			return marked != "" && strings.Contains(value, marked)
		}
		return begins(value, agent)
	})
}

// begins reports whether a text begins with another, ignoring case.
func begins(text, beginning string) bool {
	return len(text) >= len(beginning) && strings.EqualFold(text[:len(beginning)], beginning)
}
