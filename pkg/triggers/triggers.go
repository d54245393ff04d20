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

// Package triggers reads the metadata of the triggers of ElastiServices.
// Validation and evaluation both go through it, so that what is accepted is
// what is understood.
//
// It does not know how a trigger is evaluated. Begin with Validate.
package triggers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Types of triggers.
const (
	// TypePrometheus compares the result of a Prometheus query with a threshold.
	TypePrometheus = "prometheus"
	// TypeTraffic observes the requests and connections that resolvers forward.
	TypeTraffic = "traffic"
	// TypeExternalMetric compares a metric of external.metrics.k8s.io with a threshold.
	TypeExternalMetric = "externalMetric"
	// TypeCPU compares the CPU usage of the target's pods with a threshold.
	TypeCPU = "cpu"
)

// Bounds of metadata, in bytes and entries.
const (
	maxMetadataBytes   = 64 << 10
	maxQueryBytes      = 16 << 10
	maxFilterBytes     = 4 << 10
	maxURLBytes        = 2 << 10
	maxMetricNameBytes = 1 << 10
	maxHeaders         = 32
)

// Types returns the types of triggers in the order in which messages name them.
func Types() []string {
	return []string{TypePrometheus, TypeTraffic, TypeExternalMetric, TypeCPU}
}

// Prometheus is the metadata of a trigger of TypePrometheus.
type Prometheus struct {
	// Query is the PromQL that gives one number.
	Query string
	// Threshold is what the result is compared with: below it the target is idle.
	Threshold float64
	// ServerAddress is the URL of the Prometheus server. Empty means the
	// configured one.
	ServerAddress string
	// UptimeFilter holds the label matchers that select the up metric of what
	// is scraped. Empty means the default.
	UptimeFilter string
	// Headers are extra headers of the HTTP requests.
	Headers map[string]string
	// Credentials are read from Secrets and ConfigMaps.
	Credentials Credentials
}

// ExternalMetric is the metadata of a trigger of TypeExternalMetric.
type ExternalMetric struct {
	// MetricName is the name of the metric.
	MetricName string
	// Selector selects the series of the metric, which are added up.
	Selector labels.Selector
	// Threshold is what the sum is compared with: below it the target is idle.
	Threshold float64
}

// CPU is the metadata of a trigger of TypeCPU.
type CPU struct {
	// ThresholdCores is the number of CPU cores that the sum of what the
	// target's pods use is compared with: below it the target is idle.
	ThresholdCores float64
}

// Validate checks the metadata of a trigger of the given type, which is one of
// Types. The path is that of the metadata.
func Validate(triggerType string, metadata *runtime.RawExtension, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch triggerType {
	case TypePrometheus:
		_, errs = ParsePrometheus(metadata, path)
	case TypeTraffic:
		_, errs = decode(metadata, path)
	case TypeExternalMetric:
		_, errs = ParseExternalMetric(metadata, path)
	case TypeCPU:
		_, errs = ParseCPU(metadata, path)
	}
	return errs
}

// KnownKeys returns the keys of metadata that a trigger of the type knows, in the
// order in which messages name them.
func KnownKeys(triggerType string) []string {
	switch triggerType {
	case TypePrometheus:
		return []string{"query", "threshold", "serverAddress", "uptimeFilter", "headers", authorizationKey, basicAuthKey, tlsConfigKey}
	case TypeExternalMetric:
		return []string{"metricName", "selector", "threshold"}
	case TypeCPU:
		return []string{"threshold"}
	default:
		return nil
	}
}

// UnknownKeys returns the keys of metadata that a trigger of the type does not
// know, sorted. They are kept, and have no effect.
func UnknownKeys(triggerType string, metadata *runtime.RawExtension) []string {
	values, _ := decode(metadata, nil)
	for _, key := range KnownKeys(triggerType) {
		delete(values, key)
	}
	return slices.Sorted(maps.Keys(values))
}

// ParsePrometheus reads the metadata of a trigger of TypePrometheus. The path
// is that of the metadata.
func ParsePrometheus(metadata *runtime.RawExtension, path *field.Path) (Prometheus, field.ErrorList) {
	values, errs := decode(metadata, path)
	if len(errs) > 0 {
		return Prometheus{}, errs
	}
	var parsed Prometheus
	parsed.Query = values.text("query", maxQueryBytes, path, &errs)
	if _, given := values["query"]; !given || strings.TrimSpace(parsed.Query) == "" && len(errs) == 0 {
		errs = append(errs, field.Required(path.Child("query"), "give the PromQL whose result says how much the target is used"))
	}
	parsed.Threshold = values.number("threshold", "give the number below which the target is idle", parseNumber, path, &errs)
	parsed.ServerAddress = values.text("serverAddress", maxURLBytes, path, &errs)
	if parsed.ServerAddress != "" {
		errs = append(errs, validateServerAddress(parsed.ServerAddress, path.Child("serverAddress"))...)
	}
	parsed.UptimeFilter = values.text("uptimeFilter", maxFilterBytes, path, &errs)
	parsed.Headers = values.headers("headers", path, &errs)
	parsed.Credentials = values.credentials(parsed.ServerAddress, parsed.Headers, path, &errs)
	return parsed, errs
}

// ParseExternalMetric reads the metadata of a trigger of TypeExternalMetric.
// The path is that of the metadata.
func ParseExternalMetric(metadata *runtime.RawExtension, path *field.Path) (ExternalMetric, field.ErrorList) {
	values, errs := decode(metadata, path)
	if len(errs) > 0 {
		return ExternalMetric{}, errs
	}
	var parsed ExternalMetric
	parsed.MetricName = values.text("metricName", maxMetricNameBytes, path, &errs)
	if parsed.MetricName == "" && len(errs) == 0 {
		errs = append(errs, field.Required(path.Child("metricName"), "give the name of a metric that external.metrics.k8s.io serves"))
	}
	// It becomes a part of a path, below the namespace.
	for _, problem := range content.IsPathSegmentName(parsed.MetricName) {
		errs = append(errs, field.Invalid(path.Child("metricName"), parsed.MetricName, problem))
	}
	selector, err := labels.Parse(values.text("selector", maxFilterBytes, path, &errs))
	if err != nil {
		errs = append(errs, field.Invalid(path.Child("selector"), string(values["selector"]), fmt.Sprintf("not a label selector such as queue=orders: %v", err)))
	}
	parsed.Selector = selector
	parsed.Threshold = values.number("threshold", "give the number below which the target is idle", parseQuantity, path, &errs)
	return parsed, errs
}

// ParseCPU reads the metadata of a trigger of TypeCPU. The path is that of the
// metadata.
func ParseCPU(metadata *runtime.RawExtension, path *field.Path) (CPU, field.ErrorList) {
	values, errs := decode(metadata, path)
	if len(errs) > 0 {
		return CPU{}, errs
	}
	cores := values.number("threshold", "give the CPU cores below which the target is idle, such as 50m", parseQuantity, path, &errs)
	if len(errs) == 0 && cores <= 0 {
		errs = append(errs, field.Invalid(path.Child("threshold"), string(values["threshold"]), "must be more than 0: no pod uses less"))
	}
	return CPU{ThresholdCores: cores}, errs
}

// values are the members of a metadata object, still encoded.
type values map[string]json.RawMessage

func decode(metadata *runtime.RawExtension, path *field.Path) (values, field.ErrorList) {
	if metadata == nil || len(metadata.Raw) == 0 {
		return values{}, nil
	}
	if len(metadata.Raw) > maxMetadataBytes {
		return nil, field.ErrorList{field.TooLong(path, "", maxMetadataBytes)}
	}
	var members values
	if err := json.Unmarshal(metadata.Raw, &members); err != nil {
		return nil, field.ErrorList{field.TypeInvalid(path, field.OmitValueType{}, "must be an object")}
	}
	return members, nil
}

// text returns a string member, empty when there is none.
func (v values) text(key string, maxBytes int, path *field.Path, errs *field.ErrorList) string {
	raw, ok := v[key]
	if !ok {
		return ""
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		*errs = append(*errs, field.TypeInvalid(path.Child(key), string(raw), "must be a string"))
		return ""
	}
	if len(*text) > maxBytes {
		*errs = append(*errs, field.TooLong(path.Child(key), "", maxBytes))
	}
	return *text
}

// number returns a required member that is a number, or a string that parse
// makes one of.
func (v values) number(key, whatToGive string, parse func(string) (float64, error), path *field.Path, errs *field.ErrorList) float64 {
	raw, ok := v[key]
	if !ok || len(bytes.Trim(raw, `" `)) == 0 {
		*errs = append(*errs, field.Required(path.Child(key), whatToGive))
		return 0
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		var number json.Number
		if err := json.Unmarshal(raw, &number); err != nil || number == "" {
			*errs = append(*errs, field.TypeInvalid(path.Child(key), string(raw), "must be a number, or a string with a number in it"))
			return 0
		}
		text = number.String()
	}
	parsed, err := parse(strings.TrimSpace(text))
	if err != nil || math.IsNaN(parsed) || math.IsInf(parsed, 0) {
		*errs = append(*errs, field.Invalid(path.Child(key), text, "must be a finite number"))
		return 0
	}
	return parsed
}

func parseNumber(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func parseQuantity(text string) (float64, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	return quantity.AsApproximateFloat64(), nil
}

// headers returns a member that maps names of HTTP headers to values.
func (v values) headers(key string, path *field.Path, errs *field.ErrorList) map[string]string {
	raw, ok := v[key]
	if !ok {
		return nil
	}
	var headers map[string]string
	if err := json.Unmarshal(raw, &headers); err != nil {
		*errs = append(*errs, field.TypeInvalid(path.Child(key), field.OmitValueType{}, "must map names of headers to strings: put numbers and booleans in quotes"))
		return nil
	}
	if len(headers) > maxHeaders {
		*errs = append(*errs, field.TooMany(path.Child(key), len(headers), maxHeaders))
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if !httpguts.ValidHeaderFieldName(name) {
			*errs = append(*errs, field.Invalid(path.Child(key), name, "is not the name of an HTTP header: use letters, digits and hyphens"))
		}
		if !httpguts.ValidHeaderFieldValue(headers[name]) {
			// The value may be a secret, so it is not part of the message.
			*errs = append(*errs, field.Invalid(path.Child(key).Key(name), field.OmitValueType{}, "is not the value of an HTTP header: take out line breaks and control characters"))
		}
	}
	return headers
}

func validateServerAddress(address string, path *field.Path) field.ErrorList {
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		// The error of url.Parse repeats the address, which may hold a password.
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "is not a URL: use one such as http://prometheus.monitoring.svc:9090")}
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return field.ErrorList{field.Invalid(path, parsed.Redacted(), "must start with http:// or https://")}
	case parsed.Hostname() == "":
		return field.ErrorList{field.Invalid(path, parsed.Redacted(), "has no host: use a URL such as http://prometheus.monitoring.svc:9090")}
	case parsed.Fragment != "":
		return field.ErrorList{field.Invalid(path, parsed.Redacted(), "must not have a fragment: take out what follows #")}
	default:
		return nil
	}
}
