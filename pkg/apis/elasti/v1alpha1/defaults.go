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

package v1alpha1

import (
	"k8s.io/utils/ptr"
)

// Defaults of the ElastiService fields.
const (
	DefaultMinTargetReplicas    int32 = 1
	DefaultCooldownPeriod       int32 = 900
	DefaultEnabledSchedule            = "0 0 * * *"
	DefaultEnabledDuration            = "24h"
	DefaultEnabledTimeZone            = "UTC"
	DefaultHoldTimeoutSeconds   int32 = 600
	DefaultMaxPending           int32 = 10000
	DefaultMaxConcurrencyPerPod int32 = 0
)

// SetDefaults_ElastiServiceSpec sets the defaults of an ElastiService.
func SetDefaults_ElastiServiceSpec(spec *ElastiServiceSpec) {
	if spec.MinTargetReplicas == nil {
		spec.MinTargetReplicas = ptr.To(DefaultMinTargetReplicas)
	}
	if spec.CooldownPeriod == nil {
		spec.CooldownPeriod = ptr.To(DefaultCooldownPeriod)
	}
	if spec.Proxy == nil {
		spec.Proxy = &ProxySpec{}
	}
}

// SetDefaults_EnabledPeriod sets the defaults of an enabled period: all day,
// every day, in UTC.
func SetDefaults_EnabledPeriod(period *EnabledPeriod) {
	if period.Schedule == "" {
		period.Schedule = DefaultEnabledSchedule
	}
	if period.Duration == "" {
		period.Duration = DefaultEnabledDuration
	}
	if period.TimeZone == "" {
		period.TimeZone = DefaultEnabledTimeZone
	}
}

// SetDefaults_ProxySpec sets the defaults of how resolvers treat traffic.
func SetDefaults_ProxySpec(proxy *ProxySpec) {
	if proxy.Policy == "" {
		proxy.Policy = ProxyWhenAsleep
	}
	if proxy.HoldTimeoutSeconds == nil {
		proxy.HoldTimeoutSeconds = ptr.To(DefaultHoldTimeoutSeconds)
	}
	if proxy.MaxPending == nil {
		proxy.MaxPending = ptr.To(DefaultMaxPending)
	}
	if proxy.MaxConcurrencyPerPod == nil {
		proxy.MaxConcurrencyPerPod = ptr.To(DefaultMaxConcurrencyPerPod)
	}
	if proxy.Readiness == "" {
		proxy.Readiness = ReadinessProbe
	}
}

// SetDefaults_PassiveSpec sets the defaults of which clients are passive.
func SetDefaults_PassiveSpec(passive *PassiveSpec) {
	if passive.WellKnown == nil {
		passive.WellKnown = ptr.To(true)
	}
}

// SetDefaults_ClientAddressSpec sets the defaults of how pods learn the address
// of the client.
func SetDefaults_ClientAddressSpec(clientAddress *ClientAddressSpec) {
	if clientAddress.Header == "" {
		clientAddress.Header = ClientAddressNone
	}
}

// SetDefaults_PathMatch sets the default way of comparing paths.
func SetDefaults_PathMatch(match *PathMatch) {
	if match.Type == "" {
		match.Type = PathMatchPrefix
	}
}

// SetDefaults_ValueMatch sets the default way of comparing values.
func SetDefaults_ValueMatch(match *ValueMatch) {
	if match.Type == "" {
		match.Type = ValueMatchExact
	}
}
