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

package route

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	resolveractivity "github.com/truefoundry/elasti-apiserver/pkg/resolver/activity"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/hold"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/passive"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/proberesponse"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/triggers"
)

// configOf returns the configuration of the traffic of an ElastiService; rules are its
// compiled spec.probeResponse.
func configOf(object *v1alpha1.ElastiService, rules *proberesponse.Rules) *service.Config {
	proxy := object.Spec.Proxy
	if proxy == nil {
		proxy = &v1alpha1.ProxySpec{}
	}
	config := &service.Config{
		Mode:   object.Status.Mode,
		Always: proxy.Policy == v1alpha1.ProxyAlways,
		// The controller puts resolvers in the path after this, and before it says so.
		FallingAsleep:  object.Status.SleepRequestedTime != nil,
		AllowedClients: service.NewClients(proxy.AllowedClients),
		HoldTimeout:    time.Duration(ptr.Deref(proxy.HoldTimeoutSeconds, v1alpha1.DefaultHoldTimeoutSeconds)) * time.Second,
		Limits: hold.Limits{
			MaxPending:           int(ptr.Deref(proxy.MaxPending, v1alpha1.DefaultMaxPending)),
			MaxConcurrencyPerPod: int(ptr.Deref(proxy.MaxConcurrencyPerPod, v1alpha1.DefaultMaxConcurrencyPerPod)),
		},
		ProbeResponses: rules,
		Passive:        passive.Compile(proxy.Passive),
		WaitingPage:    proxy.WaitingPage,
		Problem:        problemOf(object),
		Activity:       activityOf(object),
	}
	if address := proxy.ClientAddress; address != nil {
		config.ClientHeader, config.ProxyProtocol = address.Header, address.ProxyProtocol
	}
	if proxy.Readiness != v1alpha1.ReadinessEndpoints {
		config.Probes = object.Status.ReadinessProbes
	}
	return config
}

// problemOf returns the reason why the target of an ElastiService does not start.
func problemOf(object *v1alpha1.ElastiService) string {
	available := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionTargetAvailable)
	if available == nil || available.Status != metav1.ConditionFalse || !v1alpha1.IsTargetProblem(available.Reason) {
		return ""
	}
	return available.Reason + ": " + available.Message
}

// activityOf returns what is reported of the traffic of an ElastiService. While
// its target sleeps, that there is no traffic decides nothing.
func activityOf(object *v1alpha1.ElastiService) resolveractivity.Policy {
	byTraffic := slices.ContainsFunc(object.Spec.Triggers, func(trigger v1alpha1.ScaleTrigger) bool {
		return trigger.Type == triggers.TypeTraffic
	})
	cooldown := time.Duration(ptr.Deref(object.Spec.CooldownPeriod, v1alpha1.DefaultCooldownPeriod)) * time.Second
	return resolveractivity.Policy{
		Report:    len(object.Spec.Triggers) > 0 && object.DeletionTimestamp.IsZero(),
		KeepAlive: byTraffic && object.Status.Replicas > 0,
		Interval:  activity.Interval(cooldown),
	}
}

// portsOfService returns the ports of an ElastiService that have a proxy port.
func portsOfService(object *v1alpha1.ElastiService) []service.Port {
	ports := make([]service.Port, 0, len(object.Status.ProxyPorts))
	for _, port := range object.Status.ProxyPorts {
		if port.ProxyPort == 0 {
			continue
		}
		ports = append(ports, service.Port{
			Number:      port.Port,
			Name:        port.Name,
			AppProtocol: port.AppProtocol,
			ProxyPort:   port.ProxyPort,
		})
	}
	return ports
}

// draining returns the configuration of a service that is draining: clients are made to
// reconnect, which takes them to another endpoint.
func draining(config service.Config) *service.Config {
	config.Mode, config.Always, config.FallingAsleep = v1alpha1.ModeServe, false, false
	config.Activity = resolveractivity.Policy{}
	return &config
}
