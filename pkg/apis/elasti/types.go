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

package elasti

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Finalizer keeps an ElastiService until everything that was added for it is
// removed again and its target is awake.
const Finalizer = "elasti.truefoundry.com/finalizer"

// Mode says where the traffic of a public Service goes.
type Mode string

const (
	// ModeProxy means that a resolver slice is part of the public Service:
	// new connections reach a resolver.
	ModeProxy Mode = "proxy"
	// ModeServe means that new connections go straight to the target's pods.
	ModeServe Mode = "serve"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ElastiService scales the workload behind a Service to zero while it is not
// used, and wakes it on the first request or connection.
type ElastiService struct {
	metav1.TypeMeta
	// metadata is the standard object metadata.
	metav1.ObjectMeta

	// spec says which target and Service are managed, and when the target may sleep.
	Spec ElastiServiceSpec
	// status is what is observed in the cluster.
	Status ElastiServiceStatus
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ElastiServiceList is a list of ElastiServices.
type ElastiServiceList struct {
	metav1.TypeMeta
	// metadata is the standard list metadata.
	metav1.ListMeta

	// items are the ElastiServices of the list.
	Items []ElastiService
}

// ElastiServiceSpec is the desired state of an ElastiService.
type ElastiServiceSpec struct {
	// scaleTargetRef names the object that is scaled to zero and back, in the
	// namespace of the ElastiService. Any kind with a scale subresource is valid.
	ScaleTargetRef ScaleTargetRef
	// service is the name of the Service, in the same namespace, that clients
	// call. It is never modified. At most one ElastiService may name a Service.
	Service string
	// minTargetReplicas is the number of replicas that a wake scales the target
	// to. At least 1. Defaults to 1.
	MinTargetReplicas *int32
	// cooldownPeriod is how long, in seconds, every trigger must say idle
	// before the target is put to sleep. 0 to 604800 (7 days). Defaults to 900.
	CooldownPeriod *int32
	// triggers decide when the target is idle: it sleeps when every one of
	// them says idle for the whole cooldownPeriod. Without triggers the target
	// is never put to sleep, but still woken. At most 16.
	Triggers []ScaleTrigger
	// autoscaler is the autoscaler that also scales the target. It is paused
	// while the target sleeps.
	Autoscaler *AutoscalerSpec
	// enabledPeriod restricts sleeping to a recurring period: outside of it
	// the target is kept awake. Without it the target may sleep at any time.
	EnabledPeriod *EnabledPeriod
	// probeResponse lists rules for requests that a resolver responds to itself
	// while the target sleeps, without waking it, such as the health checks of
	// a load balancer. The first rule that matches counts. At most 32,
	// with bodies of 64 KiB together.
	ProbeResponse []ProbeResponseRule
	// proxy says how resolvers treat the traffic of this service.
	Proxy *ProxySpec
}

// ScaleTargetRef names the object that is scaled.
type ScaleTargetRef struct {
	// apiVersion is the API group and version of the target, such as apps/v1.
	APIVersion string
	// kind is the kind of the target, such as Deployment, StatefulSet or
	// Rollout. The spellings deployments and rollouts are understood too.
	Kind string
	// name is the name of the target.
	Name string
}

// ScaleTrigger is one source of the decision whether the target is idle.
type ScaleTrigger struct {
	// type is the kind of trigger: prometheus, traffic, externalMetric or cpu.
	Type string
	// metadata is the configuration of the trigger; its keys depend on type.
	// Keys that the type does not know are kept and have no effect. Numbers may
	// be written as strings.
	//
	// prometheus: a query of a Prometheus server.
	// query (PromQL that gives one number; required),
	// threshold (a number in the unit of the query; the target is idle while the
	// result is below it; required),
	// serverAddress (http or https URL of the Prometheus server; defaults to
	// the one that the elasti-apiserver was started with),
	// uptimeFilter (label matchers that select the up metric of what must have
	// been scraped without a gap for a minute; defaults to container="prometheus"),
	// headers (map of extra HTTP request headers; defaults to none),
	// authorization (type, the scheme of the Authorization header, which defaults
	// to Bearer, and credentials, name and key of a Secret; defaults to none),
	// basicAuth (username and password, each name and key of a Secret; defaults
	// to none; not together with authorization),
	// tlsConfig (for https: ca, secret or configMap with name and key, defaults to
	// the authorities of the system; cert, likewise, and keySecret, name and key,
	// the client's certificate, default to none; serverName, the name in the
	// server's certificate, defaults to the host of serverAddress).
	// The user who writes the trigger must be allowed to get these Secrets and ConfigMaps,
	// and so must the elasti-apiserver; they are in the namespace of the
	// ElastiService.
	//
	// traffic: the requests and connections that the resolvers hold and forward;
	// the target is idle while there are none. Needs proxy.policy Always. Has no
	// keys.
	//
	// externalMetric: a metric of external.metrics.k8s.io in the namespace of the
	// ElastiService.
	// metricName (name of the metric; required),
	// selector (label selector as a string, such as queue=orders; defaults to
	// everything),
	// threshold (a number in the unit of the metric, or a quantity such as 500m;
	// the target is idle while the sum of the metric is below it; required).
	//
	// cpu: the CPU usage of the target's pods as the resource metrics API reports it.
	// threshold (CPU cores as a number, or a quantity such as 50m for 50
	// milli-cores; the target is idle while the sum over its pods is below it;
	// required).
	Metadata *runtime.RawExtension
}

// AutoscalerType is a kind of autoscaler that is paused while a target sleeps.
type AutoscalerType string

const (
	// AutoscalerKEDA is a KEDA ScaledObject, paused through its annotations.
	AutoscalerKEDA AutoscalerType = "keda"
	// AutoscalerHPA is a HorizontalPodAutoscaler, which idles by itself at
	// zero replicas.
	AutoscalerHPA AutoscalerType = "hpa"
)

// AutoscalerSpec names the autoscaler of the target.
type AutoscalerSpec struct {
	// type is keda or hpa.
	Type AutoscalerType
	// name is the name of the ScaledObject or HorizontalPodAutoscaler, in the
	// namespace of the ElastiService.
	Name string
}

// EnabledPeriod is a recurring period of time.
type EnabledPeriod struct {
	// schedule is when the period starts: a cron expression of five fields, or
	// a macro such as @daily. Defaults to "0 0 * * *".
	Schedule string
	// duration is how long the period lasts from each start, such as 8h or
	// 1h30m. Defaults to 24h.
	Duration string
	// timeZone is the IANA name of the time zone that schedule is read in,
	// such as Europe/Berlin. Defaults to UTC. Start and end are read off the
	// clock on the wall there: 12h from 19:00 last until 07:00, also in a night
	// in which the clock is changed.
	TimeZone string
}

// ProxyPolicy says when resolvers are in the path of the traffic.
type ProxyPolicy string

const (
	// ProxyWhenAsleep keeps resolvers in the path only while no pod is ready.
	ProxyWhenAsleep ProxyPolicy = "WhenAsleep"
	// ProxyAlways keeps resolvers among the endpoints of the Service at all
	// times. While pods are ready, these are endpoints too, and receive a share
	// of the new connections themselves.
	ProxyAlways ProxyPolicy = "Always"
)

// ReadinessPolicy says how a resolver learns that a pod is ready.
type ReadinessPolicy string

const (
	// ReadinessProbe means that the resolver runs the pod's own readiness
	// probe, at a shorter interval than the kubelet.
	ReadinessProbe ReadinessPolicy = "Probe"
	// ReadinessEndpoints means that the resolver waits until the pod is ready
	// in the EndpointSlices.
	ReadinessEndpoints ReadinessPolicy = "Endpoints"
)

// ProxySpec says how resolvers treat the traffic of a service.
type ProxySpec struct {
	// policy is WhenAsleep (resolvers are in the path only while no pod is
	// ready) or Always (they stay among the endpoints of the Service while pods
	// are ready). With Always, resolvers and pods share the new connections: of
	// 2 resolvers and 1 pod, the resolvers receive about two of three, and the
	// others go straight to the pod. Defaults to WhenAsleep.
	Policy ProxyPolicy
	// holdTimeoutSeconds is how long a request or connection is held for the
	// target to wake, in seconds, before it gets an error. 1 to 86400.
	// Defaults to 600.
	HoldTimeoutSeconds *int32
	// maxPending is how many requests and connections one resolver holds for
	// this service; more get 503 with Retry-After. 1 to 1000000. Defaults to 10000.
	MaxPending *int32
	// maxConcurrencyPerPod is how many requests and connections one resolver
	// sends to one pod at a time; more stay held. 0 means no limit. Defaults to 0.
	MaxConcurrencyPerPod *int32
	// readiness is Probe (the resolver runs the pod's own readiness probe at a
	// short interval) or Endpoints (it waits until the pod is ready in the
	// EndpointSlices). Defaults to Probe.
	Readiness ReadinessPolicy
	// waitingPage responds to the navigation of a browser at zero with a page that
	// shows the progress of the wake and then loads the application. Defaults
	// to false.
	WaitingPage bool
	// convergenceSeconds is how long, in seconds, the resolvers are in the path of the
	// traffic before the target is scaled to zero: what learns of endpoints late, such
	// as an ingress controller, still reaches the pods until then. 1 to 600. Defaults to
	// what the elasti-apiserver was started with (--convergence-time, 3s).
	ConvergenceSeconds *int32
	// allowedClients are the networks, such as 10.0.0.0/8 or 2001:db8::/32, from which
	// connections to the proxy ports of this service are accepted; others are reset.
	// The address is that of the connection: behind a Service or an ingress it may be
	// that of a node or of the ingress. At most 64. Empty means every address.
	AllowedClients []string
	// passive says which clients neither wake the target nor count as use of it, such
	// as scrapers and health checkers. While the target sleeps they get the response
	// of probeResponse, or else 503. Defaults to the well-known ones.
	Passive *PassiveSpec
	// clientAddress says how pods learn the address of the client, as connections come
	// from the resolver. Defaults to not at all.
	ClientAddress *ClientAddressSpec
}

// PassiveSpec says which clients neither wake the target nor count as use of it.
// A request or connection is passive when any of the lists matches it.
type PassiveSpec struct {
	// wellKnown adds the user agents of the scrapers, health checkers and load
	// balancers of the field, such as Prometheus/ and kube-probe/, to userAgents. Of
	// their requests, those with GET, HEAD or OPTIONS and health checks of gRPC are
	// passive: others may bring data.
	// Defaults to true.
	WellKnown *bool
	// userAgents are what the User-Agent header of passive requests begins with,
	// whatever the case of its letters. At most 64.
	UserAgents []string
	// paths are the exact paths, without query, of passive requests. At most 64.
	Paths []string
	// ports are the ports of the public Service on which everything is passive, such
	// as one for metrics. At most 64.
	Ports []int32
}

// ClientAddressHeader is a header in which pods learn the address of the client.
type ClientAddressHeader string

const (
	// ClientAddressNone leaves the headers of requests as they are.
	ClientAddressNone ClientAddressHeader = "None"
	// ClientAddressXForwardedFor is the header X-Forwarded-For.
	ClientAddressXForwardedFor ClientAddressHeader = "XForwardedFor"
	// ClientAddressForwarded is the header Forwarded of RFC 7239.
	ClientAddressForwarded ClientAddressHeader = "Forwarded"
)

// ClientAddressSpec says how pods learn the address of the client.
type ClientAddressSpec struct {
	// header is the header of HTTP requests to which the address of the client is
	// appended: None, XForwardedFor or Forwarded (RFC 7239). What the client itself
	// wrote there stays before it. Defaults to None.
	Header ClientAddressHeader
	// proxyProtocol begins connections that are not HTTP with a header of the PROXY
	// protocol, version 2. The application has to expect it, from its pods' probes as
	// well. Defaults to false.
	ProxyProtocol bool
}

// WakeRecord is a wake that scaled a target from zero, or ended its scale-down.
type WakeRecord struct {
	// time is when the target was woken.
	Time metav1.Time
	// by is the client that woke it: a ServiceAccount with its pod, a user, or the
	// field manager of the replicas.
	By string
	// reason is why, as the client says.
	Reason string
	// cancelledSleep is true when it canceled a request for sleep.
	CancelledSleep bool
}

// ElastiServiceStatus is what is observed in the cluster.
type ElastiServiceStatus struct {
	// mode is proxy while resolvers are in the path of the public Service's
	// traffic, serve while it goes straight to the pods.
	Mode Mode
	// lastReconciledTime is when the mode last changed.
	LastReconciledTime *metav1.Time
	// lastScaledUpTime is when the target was last scaled from zero.
	LastScaledUpTime *metav1.Time
	// lastWake is the last wake of the target, through any of its ElastiServices.
	LastWake *WakeRecord
	// lastActivityTime is when the target was last known to be in use. It never
	// goes back.
	LastActivityTime *metav1.Time
	// activity is what resolvers have reported of the traffic that goes through
	// them, one entry for each resolver. At most 64.
	Activity []ResolverActivity
	// sleptTime is when the target was last put to sleep. Unset while it is awake.
	SleptTime *metav1.Time
	// sleepRequestedTime is when sleep was requested by scaling the ElastiService
	// to 0. Unset once the target sleeps, when it is woken before, and when
	// scaleTargetRef changes.
	SleepRequestedTime *metav1.Time
	// sleepRequestedBy is the client that requested it, as lastWake has it. A
	// request of another client than elasti-apiserver waits neither for
	// cooldownPeriod nor for triggers that are unknown.
	SleepRequestedBy string
	// observedGeneration is the generation of the spec that this status is about.
	ObservedGeneration int64
	// replicas is the number of replicas in the spec of the target's scale.
	Replicas int32
	// readyReplicas is the number of the target's pods that are ready.
	ReadyReplicas int32
	// targetSharedWith are the other ElastiServices of the same target, by name, in
	// order. At most 64. The target sleeps when all of them say idle, and wakes when
	// any is called.
	TargetSharedWith []string
	// privateService is the headless Service whose EndpointSlices list the
	// target's pods and nothing else.
	PrivateService string
	// managedTarget is the target that resolvers stand in for, and what is needed to wake
	// it. It is woken when the ElastiService names another one or is deleted, whatever
	// happened to the objects in the cluster meanwhile. Unset while there is none.
	ManagedTarget *ManagedTarget
	// proxyPorts are the ports on every resolver that belong to the ports of
	// the public Service.
	ProxyPorts []ProxyPort
	// readinessProbes are the probes by which resolvers check whether a pod of the
	// target is ready. Unset when these are not known, cannot be run from outside of the
	// pod, or are larger than 4 KiB; then the EndpointSlices say whether it is ready.
	ReadinessProbes *ReadinessProbes
	// conditions are the state of what the ElastiService needs.
	// Ready: everything is in place for the target to sleep and wake.
	// ServiceFound, TargetFound: the Service and the target exist and can be used.
	// ResolverAvailable: a resolver is ready to hold traffic.
	// TriggersHealthy: every trigger reports whether the target is idle; there with
	// triggers only.
	// AutoscalerFound: the autoscaler exists and scales the target; there with
	// spec.autoscaler only.
	// Conflict: true while another ElastiService names the same Service.
	// ScalingConflict: true while another client or controller scales the target up
	// each time that it was put to sleep.
	// DryRun: there, and true, while decisions are shown and not carried out.
	// Sleeping: true while the target sleeps; false while it is awake, with the reason
	// and the last wake in the message; unknown until the first decision.
	// TargetShared: there, and true, while other ElastiServices have the same target.
	Conditions []metav1.Condition
}

// ManagedTarget is a target that resolvers stand in for.
type ManagedTarget struct {
	// scaleTargetRef names the target.
	ScaleTargetRef ScaleTargetRef
	// autoscaler is the autoscaler that is paused while the target sleeps.
	Autoscaler *AutoscalerSpec
	// minTargetReplicas is the number of replicas that the target is woken to.
	MinTargetReplicas *int32
}

// ProxyPort is the port on every resolver that belongs to one port of the
// public Service.
type ProxyPort struct {
	// port is the port number of the public Service.
	Port int32
	// name is the name of the Service port, empty when it has none. The ports
	// of EndpointSlices carry the same name.
	Name string
	// appProtocol is the appProtocol of the Service port, empty when unset.
	AppProtocol string
	// proxyPort is the port that resolvers listen on, unique in the cluster.
	ProxyPort int32
}

// ReadinessProbes are the readiness probes of a target's pods. A pod is ready
// when every one of them succeeds; with none it is ready when it accepts
// connections.
type ReadinessProbes struct {
	// probes are the readiness probes of the pod's containers.
	Probes []ReadinessProbeAction
}

// ReadinessProbeAction is the readiness probe of one container. Exactly one of
// httpGet, tcpSocket and grpc is set.
type ReadinessProbeAction struct {
	// httpGet is a probe by an HTTP GET request; ready is a status from 200 to 399.
	HTTPGet *HTTPGetAction
	// tcpSocket is a probe by connecting.
	TCPSocket *TCPSocketAction
	// grpc is a probe by the gRPC health checking protocol.
	GRPC *GRPCAction
	// timeoutSeconds is the timeout of one probe, in seconds.
	TimeoutSeconds int32
}

// HTTPGetAction is a probe by HTTP GET.
type HTTPGetAction struct {
	// path is the path and query of the request.
	Path string
	// port is the port number on the pod.
	Port int32
	// scheme is HTTP or HTTPS. The certificate of an HTTPS server is not verified.
	Scheme string
	// httpHeaders are the headers of the request.
	HTTPHeaders []HTTPHeader
}

// HTTPHeader is one header of a probe's request.
type HTTPHeader struct {
	// name is the name of the header.
	Name string
	// value is the value of the header.
	Value string
}

// TCPSocketAction is a probe by connecting.
type TCPSocketAction struct {
	// port is the port number on the pod.
	Port int32
}

// GRPCAction is a probe by the gRPC health checking protocol.
type GRPCAction struct {
	// port is the port number on the pod.
	Port int32
	// service is the service name in the health check request.
	Service string
}
