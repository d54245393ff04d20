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

import "slices"

// Reasons of ConditionReady, ConditionServiceFound, ConditionTargetFound,
// ConditionResolverAvailable, ConditionConflict and ConditionAutoscalerFound,
// and of the Events about them.
const (
	// ReasonFound: the object exists.
	ReasonFound = "Found"
	// ReasonNotFound: the object does not exist.
	ReasonNotFound = "NotFound"
	// ReasonServiceNotFound: the public Service does not exist.
	ReasonServiceNotFound = "ServiceNotFound"
	// ReasonTargetNotFound: the target does not exist.
	ReasonTargetNotFound = "TargetNotFound"
	// ReasonPortsNotProxied: the Service has ports that are not TCP. Resolvers
	// cannot hold their traffic.
	ReasonPortsNotProxied = "PortsNotProxied"
	// ReasonServiceNotSupported: resolvers cannot be in the path of this
	// Service: it is headless, an ExternalName, without selector or without
	// TCP port.
	ReasonServiceNotSupported = "ServiceNotSupported"
	// ReasonKindNotServed: the cluster does not serve the kind.
	ReasonKindNotServed = "KindNotServed"
	// ReasonKindNotScalable: the kind of the target has no scale subresource.
	ReasonKindNotScalable = "KindNotScalable"
	// ReasonKindInvalid: apiVersion or kind of the target is malformed.
	ReasonKindInvalid = "KindInvalid"
	// ReasonTargetUnknown: the target, or its scale, cannot be read.
	ReasonTargetUnknown = "TargetUnknown"
	// ReasonResolverReady: there is a ready resolver.
	ReasonResolverReady = "ResolverReady"
	// ReasonNoReadyResolver: there has been no ready resolver for the grace
	// period.
	ReasonNoReadyResolver = "NoReadyResolver"
	// ReasonNoResolverOfIPFamily: the Service has an IP family of which no ready
	// resolver has had an address for the grace period.
	ReasonNoResolverOfIPFamily = "NoResolverOfIPFamily"
	// ReasonNoAcceptingResolver: resolvers are ready, and none accepts connections to
	// the proxy ports of the Service. A sleeping target is woken for it.
	ReasonNoAcceptingResolver = "NoAcceptingResolver"
	// ReasonServiceTaken: an older ElastiService names the same Service.
	ReasonServiceTaken = "ServiceTaken"
	// ReasonNoConflict: no other ElastiService names the Service.
	ReasonNoConflict = "NoConflict"
	// ReasonProxyPortsExhausted: there is no free proxy port.
	ReasonProxyPortsExhausted = "ProxyPortsExhausted"
	// ReasonNameTaken: an object that is not managed by the controller has the
	// name of one that is needed.
	ReasonNameTaken = "NameTaken"
	// ReasonWriteFailed: an object that is needed could not be written.
	ReasonWriteFailed = "WriteFailed"
	// ReasonNamespaceUnreadable: the Services or EndpointSlices of the namespace cannot
	// be read. Everything stays as it is until they can be.
	ReasonNamespaceUnreadable = "NamespaceUnreadable"
	// ReasonReady: everything is in place.
	ReasonReady = "Ready"
	// ReasonAutoscalerUnknown: the autoscaler cannot be read.
	ReasonAutoscalerUnknown = "AutoscalerUnknown"
	// ReasonOtherTarget: the autoscaler scales another object.
	ReasonOtherTarget = "OtherTarget"
	// AutoscalerReasonPrefix precedes the reason of ConditionAutoscalerFound
	// in the Event about it.
	AutoscalerReasonPrefix = "Autoscaler"
)

// Reasons of Events about what was done to a target.
const (
	// ReasonModeSwitched: the mode changed.
	ReasonModeSwitched = "ModeSwitched"
	// ReasonWoken: the target was scaled up.
	ReasonWoken = "Woken"
	// ReasonScaleFailed: the target could not be scaled.
	ReasonScaleFailed = "ScaleFailed"
	// ReasonTargetRestored: a target that is not managed any more was woken.
	ReasonTargetRestored = "TargetRestored"
	// ReasonWaitingForWake: nothing can hold the traffic of a sleeping target any more, and
	// it waits for its turn to be woken.
	ReasonWaitingForWake = "WaitingForWake"
	// ReasonTargetNotRestored: a target that is not managed any more may be asleep
	// and cannot be woken. Its resolvers stay in the path until it can be.
	ReasonTargetNotRestored = "TargetNotRestored"
	// ReasonStoredObjectDamaged: the stored ElastiService cannot be read. Its target is
	// woken, as nothing else would do it, and its resolvers leave.
	ReasonStoredObjectDamaged = "StoredObjectDamaged"
	// ReasonAutoscalerNotResumed: the target was scaled, but its autoscaler
	// could not be resumed.
	ReasonAutoscalerNotResumed = "AutoscalerNotResumed"
	// ReasonSlept: the target was scaled to zero.
	ReasonSlept = "Slept"
	// ReasonSleepFailed: the target could not be scaled to zero.
	ReasonSleepFailed = "SleepFailed"
	// ReasonSleepCalledOff: the target is used, so its scale-down was
	// canceled, or it was woken again at once.
	ReasonSleepCalledOff = "SleepCalledOff"
	// ReasonResolverSliceMissing: a resolver slice of a Service of the target was missing.
	// A target that was about to be scaled to zero stays awake, one that slept is woken.
	ReasonResolverSliceMissing = "ResolverSliceMissing"
)

// Reasons of ConditionTargetAvailable, and of the Events about it.
const (
	// ReasonPodReady: a pod of the target is ready.
	ReasonPodReady = "PodReady"
	// ReasonStarting: the target is to have pods and none of them is ready.
	// Nothing is known that keeps them from becoming so.
	ReasonStarting = "Starting"
	// ReasonPodsNotCreated: the pods of the target are not created: a quota, a
	// webhook or another admission rule rejects them.
	ReasonPodsNotCreated = "PodsNotCreated"
	// ReasonUnschedulable: no node can take the pods of the target.
	ReasonUnschedulable = "Unschedulable"
	// ReasonVolumeNotMounted: a volume of a pod cannot be attached or mounted.
	ReasonVolumeNotMounted = "VolumeNotMounted"
	// ReasonImageNotPulled: the image of a container cannot be pulled.
	ReasonImageNotPulled = "ImageNotPulled"
	// ReasonContainerNotCreated: a container cannot be created or started: it
	// refers to a Secret or ConfigMap that does not exist, or its command is not
	// in its image.
	ReasonContainerNotCreated = "ContainerNotCreated"
	// ReasonContainerCrashed: a container ends after each start.
	ReasonContainerCrashed = "ContainerCrashed"
	// ReasonPodNotStarted: the node cannot start a pod for another reason.
	ReasonPodNotStarted = "PodNotStarted"
	// ReasonPodNotReady: pods run, but none has become ready for as long as
	// a Deployment waits for progress by default.
	ReasonPodNotReady = "PodNotReady"
)

// TargetProblems returns the reasons of ConditionTargetAvailable that say what
// keeps a target from starting. ConditionReady is false for the same reason
// then.
func TargetProblems() []string {
	return []string{
		ReasonPodsNotCreated,
		ReasonUnschedulable,
		ReasonVolumeNotMounted,
		ReasonImageNotPulled,
		ReasonContainerNotCreated,
		ReasonContainerCrashed,
		ReasonPodNotStarted,
		ReasonPodNotReady,
	}
}

// IsTargetProblem reports whether a reason is one of TargetProblems.
func IsTargetProblem(reason string) bool { return slices.Contains(TargetProblems(), reason) }

// SleepingReasons returns the reasons that ConditionSleeping can have.
func SleepingReasons() []string {
	return []string{
		ReasonDecisionPending,
		ReasonAsleep,
		ReasonTriggerActive,
		ReasonTraffic,
		ReasonCoolingDown,
		ReasonStarting,
		ReasonSharedTarget,
		ReasonTriggerUnknown,
		ReasonNotReported,
		ReasonNoTriggers,
		ReasonOutsideEnabledPeriod,
		ReasonNotReady,
		ReasonBackingOff,
		ReasonDryRun,
		ReasonSleepRequested,
		ReasonTargetUnknown,
		ReasonServiceTaken,
	}
}

// Reasons of decisions whether a target sleeps, of ConditionSleeping and of the
// Events about them. SleepingReasons returns those of ConditionSleeping, of which
// some are declared elsewhere.
const (
	// ReasonDecisionPending: it has not been decided yet whether the target is to
	// sleep.
	ReasonDecisionPending = "DecisionPending"
	// ReasonOutsideEnabledPeriod: the target is kept awake at this time.
	ReasonOutsideEnabledPeriod = "OutsideEnabledPeriod"
	// ReasonTriggerActive: a trigger reports that the target is used.
	ReasonTriggerActive = "TriggerActive"
	// ReasonNoTriggers: no trigger reports when the target is idle.
	ReasonNoTriggers = "NoTriggers"
	// ReasonTriggerUnknown: a trigger cannot report whether the target is idle.
	ReasonTriggerUnknown = "TriggerUnknown"
	// ReasonAsleep: the target sleeps.
	ReasonAsleep = "Asleep"
	// ReasonSleepRequested: sleep was requested, and the scale-down is under way or
	// waits until it can be carried out.
	ReasonSleepRequested = "SleepRequested"
	// ReasonWakeRequested: the target was woken, or its scale-down canceled.
	ReasonWakeRequested = "WakeRequested"
	// ReasonNotReady: the target could not be scaled to zero without losing
	// requests.
	ReasonNotReady = "NotReady"
	// ReasonCoolingDown: the target has not been idle for long enough.
	ReasonCoolingDown = "CoolingDown"
	// ReasonBackingOff: another client or controller scales the target up each
	// time, or the target could not be scaled to zero. It is left awake for a while.
	ReasonBackingOff = "BackingOff"
	// ReasonSharedTarget: the other ElastiServices of the target count too. As a
	// reason of ConditionSleeping, one of them keeps the target awake, or is why it is
	// being put to sleep.
	ReasonSharedTarget = "SharedTarget"
	// ReasonDryRun: the decisions of a dry run are not carried out.
	ReasonDryRun = "DryRun"
	// ReasonIdle: every trigger has been idle for the whole cooldown.
	ReasonIdle = "Idle"
	// ReasonWouldSleep: without the dry run, sleep of the target would have been
	// requested.
	ReasonWouldSleep = "WouldSleep"
	// ReasonWouldWake: without the dry run, the target would have been woken.
	ReasonWouldWake = "WouldWake"
	// ReasonNoAction: without the dry run, the target would be left as it is.
	ReasonNoAction = "NoAction"
	// ReasonScaledUpByOther: another client or controller scaled the sleeping
	// target up. The message names it.
	ReasonScaledUpByOther = "ScaledUpByOther"
	// ReasonScaledToZeroByOther: another client or controller, such as an autoscaler that
	// spec.autoscaler does not name, scaled the target to zero. The message names it.
	ReasonScaledToZeroByOther = "ScaledToZeroByOther"
	// ReasonConflictOver: the target sleeps again without being scaled up by others.
	ReasonConflictOver = "ConflictOver"
)

// Reasons of what a trigger reports, and of ConditionTriggersHealthy.
const (
	// ReasonTriggersAnswer: every trigger reports whether the target is idle.
	ReasonTriggersAnswer = "TriggersAnswer"
	// ReasonBelowThreshold: the value is below the threshold.
	ReasonBelowThreshold = "BelowThreshold"
	// ReasonThresholdReached: the value is at the threshold, or above it.
	ReasonThresholdReached = "ThresholdReached"
	// ReasonMetadataInvalid: the metadata of the trigger cannot be understood.
	ReasonMetadataInvalid = "MetadataInvalid"
	// ReasonNoServer: neither the trigger nor the installation names a server.
	ReasonNoServer = "NoServer"
	// ReasonServerFailed: the server cannot be reached, does not respond in
	// time or fails.
	ReasonServerFailed = "ServerFailed"
	// ReasonServerRefused: the server rejects the credentials.
	ReasonServerRefused = "ServerRefused"
	// ReasonServerNotAllowed: the trigger may not query the server.
	ReasonServerNotAllowed = "ServerNotAllowed"
	// ReasonCredentialsUnavailable: what the trigger refers to for its
	// credentials cannot be read.
	ReasonCredentialsUnavailable = "CredentialsUnavailable"
	// ReasonQueryRejected: the server does not understand the query.
	ReasonQueryRejected = "QueryRejected"
	// ReasonNotScraped: what the trigger measures was not scraped all the time.
	ReasonNotScraped = "NotScraped"
	// ReasonNoData: the response is empty.
	ReasonNoData = "NoData"
	// ReasonDataIncomplete: a part of the data is missing, or too old.
	ReasonDataIncomplete = "DataIncomplete"
	// ReasonSeveralElements: the response has several values.
	ReasonSeveralElements = "SeveralElements"
	// ReasonNotANumber: the response is not a number.
	ReasonNotANumber = "NotANumber"
	// ReasonTraffic: there is traffic.
	ReasonTraffic = "Traffic"
	// ReasonNoTraffic: there is no traffic.
	ReasonNoTraffic = "NoTraffic"
	// ReasonResolversNotInPath: resolvers are not where they could see the
	// traffic.
	ReasonResolversNotInPath = "ResolversNotInPath"
	// ReasonNotReported: a resolver that is ready has not reported in time.
	ReasonNotReported = "NotReported"
	// ReasonAwaitingReports: resolvers will report in a moment. The trigger is
	// healthy all the same.
	ReasonAwaitingReports = "AwaitingReports"
	// ReasonNotSupported: nothing evaluates this type of trigger.
	ReasonNotSupported = "NotSupported"
)

// Reasons of ConditionServiceCompatible, ConditionTargetCompatible and
// ConditionAutoscalerCompatible.
const (
	// ReasonCompatible: nothing is known that is incompatible with scale to zero.
	ReasonCompatible = "Compatible"
	// ReasonPublishesNotReadyAddresses: the Service sends traffic to pods that
	// are not ready.
	ReasonPublishesNotReadyAddresses = "PublishesNotReadyAddresses"
	// ReasonInternalTrafficPolicyLocal: clients on nodes without a resolver do
	// not reach one.
	ReasonInternalTrafficPolicyLocal = "InternalTrafficPolicyLocal"
	// ReasonExternalTrafficPolicyLocal: traffic from outside of the cluster
	// that arrives at nodes without a resolver does not reach one.
	ReasonExternalTrafficPolicyLocal = "ExternalTrafficPolicyLocal"
	// ReasonLoadBalancerTargetsPods: a load balancer takes no endpoints but pods.
	ReasonLoadBalancerTargetsPods = "LoadBalancerTargetsPods"
	// ReasonSessionAffinity: resolvers do not send a client to the same pod each time.
	ReasonSessionAffinity = "SessionAffinity"
	// ReasonTrafficDistribution: a preference of zones or nodes has no effect.
	ReasonTrafficDistribution = "TrafficDistribution"
	// ReasonNoReadinessProbe: pods are called ready before they listen.
	ReasonNoReadinessProbe = "NoReadinessProbe"
	// ReasonVolumesDeletedAtZero: scaling the target to zero would delete its
	// volumes. It is not put to sleep.
	ReasonVolumesDeletedAtZero = "VolumesDeletedAtZero"
	// ReasonVolumePolicyUnknown: it cannot be read whether scaling the target
	// to zero would delete its volumes. It is not put to sleep.
	ReasonVolumePolicyUnknown = "VolumePolicyUnknown"
	// ReasonAutoscalerScalesToZero: the autoscaler scales the target to zero too.
	ReasonAutoscalerScalesToZero = "AutoscalerScalesToZero"
	// ReasonAutoscalerPausedAtZero: the user has pinned the autoscaler to zero
	// replicas.
	ReasonAutoscalerPausedAtZero = "AutoscalerPausedAtZero"
)
