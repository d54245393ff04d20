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

package elastiservice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resolvers"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/statuswriter"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// Defaults of Options.
const (
	DefaultWorkers       = 32
	DefaultResolverGrace = 30 * time.Second
	DefaultWakeRate      = 10.0
	// DefaultConvergenceTime suffices for kube-proxy, which takes up to a second to
	// act on a new slice, and watches of nodes and ingresses that are a little
	// behind.
	DefaultConvergenceTime = 3 * time.Second
)

// Scaling is what the controller needs of a *scaling.Client.
type Scaling interface {
	Resolve(ctx context.Context, target scaling.Target) (schema.GroupVersionResource, error)
	Get(ctx context.Context, target scaling.Target) (*autoscalingv1.Scale, error)
	Wake(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32, dryRun bool) (scaling.Result, error)
	Restore(ctx context.Context, target scaling.Target, autoscaler scaling.Autoscaler, minimum int32) (scaling.Result, error)
	ScaleToZero(ctx context.Context, target scaling.Target, read *autoscalingv1.Scale) error
	PauseAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error
	KeepAutoscalerAwake(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error
	ResumeAutoscaler(ctx context.Context, namespace string, autoscaler scaling.Autoscaler) error
	ScaledUpSince(ctx context.Context, target scaling.Target, since time.Time) bool
}

var _ Scaling = &scaling.Client{}

// Reader lists and watches the ElastiServices of a namespace, or of all when it
// is empty. Safe for concurrent use.
type Reader interface {
	List(ctx context.Context, namespace string, options metav1.ListOptions) (*v1alpha1.ElastiServiceList, error)
	Watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error)
}

// Options configure a Controller. Fields without a default are required.
type Options struct {
	// Elasti reads single ElastiServices, and writes their finalizers.
	Elasti versioned.Interface
	// Statuses changes their statuses.
	Statuses statuswriter.Statuses
	// Claims stores the owner of each proxy port.
	Claims proxyports.Claims
	// Signer signs the objects that the controller makes, and recognizes them by that.
	Signer *signature.Signer
	// Reader lists and watches ElastiServices.
	Reader Reader
	// Host reads and writes the Services and EndpointSlices of the cluster.
	Host kubernetes.Interface
	// HostDynamic watches targets.
	HostDynamic dynamic.Interface
	// Scaling scales targets.
	Scaling Scaling
	// Recorder records Events about ElastiServices.
	Recorder events.EventRecorder

	// Namespaces are the namespaces that are worked on. Empty means all.
	Namespaces []string
	// ResolverNamespace and ResolverService name the Service of the resolvers.
	ResolverNamespace string
	ResolverService   string
	// ProxyPortRange is the range that proxy ports are taken from.
	ProxyPortRange utilnet.PortRange
	// SharedProxyPort is the port of the resolvers that distinguishes Services
	// by host name, for Services that find no free proxy port. Zero means
	// that there is none.
	SharedProxyPort int32
	// ResolverGrace is how long there may be no ready resolver before
	// sleeping targets are woken. Defaults to DefaultResolverGrace.
	ResolverGrace time.Duration
	// WakeRate is how many sleeping targets are woken a second while no resolver
	// is ready, or whose ElastiServices the storage has lost. Defaults to
	// DefaultWakeRate.
	WakeRate float64
	// ConvergenceTime is how long the resolvers are in the path of the traffic
	// before a target is scaled to zero, for ElastiServices that do not set it.
	// It is a time and not a check because nothing can be checked: a connection
	// to the Service from here says something about the node that the controller runs on, and
	// neither of the others nor of ingresses. Defaults to DefaultConvergenceTime.
	ConvergenceTime time.Duration
	// DialResolver connects to the health ports of resolvers, to query whether they
	// serve a new proxy port before traffic is sent there. Without it they count as
	// soon as they are ready.
	DialResolver resolvers.DialFunc
	// Changed is called with every change of an ElastiService: before is nil when
	// it is new, after when it is deleted. It must not wait for anything, and not
	// modify them. It may be nil.
	Changed func(before, after *v1alpha1.ElastiService)
	// OthersWake is true when targets are woken by other processes of the
	// product too, so that the client of a scaling up is not always known.
	OthersWake bool
	// ScaledUp is called when another client or controller scales a target up that
	// has slept for a time. by is the name that it gives itself. It must not wait
	// for anything. It may be nil.
	ScaledUp func(key types.NamespacedName, by string, slept time.Duration)
	// Woken is called when the controller woke a target by itself, with the reason
	// why. It must not wait for anything. It may be nil.
	Woken func(target resources.TargetKey, reason string)
	// SleepFailed is called when a target that was requested to sleep could not be scaled
	// to zero, with the cause. It must not wait for anything. It may be nil.
	SleepFailed func(target resources.TargetKey, cause string)
	// ConfirmIdle reports whether all ElastiServices of a target have just confirmed
	// that it may be scaled to zero. Otherwise it has them evaluated, and retry, which
	// does not block, called when that is done. It must not block. When it is nil,
	// nothing is evaluated.
	ConfirmIdle func(target resources.TargetKey, retry func()) bool
	// Requests is called with what one pod of a target requests, in each sync. It
	// must not wait for anything. It may be nil.
	Requests func(key types.NamespacedName, requests target.PodRequests)
	// ResolversChanged is called with the names of the pods of the resolvers that are
	// ready, at first and whenever they change. A resolver without a pod is named by its
	// address. It must not wait for anything. It may be nil.
	ResolversChanged func(names []string)
	// TargetKeys says which ElastiServices have the same target. Defaults to one of its
	// own.
	TargetKeys *resources.TargetKeys
	// Workers is how many ElastiServices are worked on at a time, half of them of one
	// namespace at most. Syncs that take long, because a call hangs, do not count.
	// Defaults to DefaultWorkers.
	Workers int

	// Clock is the time. Defaults to the real clock.
	Clock clock.WithTicker
	// Metrics count what the controller does, InformerMetrics what its
	// watches do. Default to metrics that are not exported.
	Metrics         *Metrics
	InformerMetrics *informers.Metrics
}

// complete sets the defaults, and returns an error when something required is missing.
func (o *Options) complete() error {
	o.setDefaults()
	var problems []error
	for name, missing := range map[string]bool{
		"Elasti":            o.Elasti == nil,
		"Statuses":          o.Statuses == nil,
		"Claims":            o.Claims == nil,
		"Signer":            o.Signer == nil,
		"Reader":            o.Reader == nil,
		"Host":              o.Host == nil,
		"HostDynamic":       o.HostDynamic == nil,
		"Scaling":           o.Scaling == nil,
		"Recorder":          o.Recorder == nil,
		"ResolverNamespace": o.ResolverNamespace == "",
		"ResolverService":   o.ResolverService == "",
		"ProxyPortRange":    o.ProxyPortRange.Size <= 0,
	} {
		if missing {
			problems = append(problems, fmt.Errorf("elastiservice: Options.%s is missing", name))
		}
	}
	return errors.Join(problems...)
}

func (o *Options) setDefaults() {
	if o.ResolverGrace == 0 {
		o.ResolverGrace = DefaultResolverGrace
	}
	if o.WakeRate == 0 {
		o.WakeRate = DefaultWakeRate
	}
	if o.ConvergenceTime == 0 {
		o.ConvergenceTime = DefaultConvergenceTime
	}
	if o.Changed == nil {
		o.Changed = func(_, _ *v1alpha1.ElastiService) {}
	}
	if o.ScaledUp == nil {
		o.ScaledUp = func(types.NamespacedName, string, time.Duration) {}
	}
	if o.Woken == nil {
		o.Woken = func(resources.TargetKey, string) {}
	}
	if o.SleepFailed == nil {
		o.SleepFailed = func(resources.TargetKey, string) {}
	}
	if o.ConfirmIdle == nil {
		o.ConfirmIdle = func(resources.TargetKey, func()) bool { return true }
	}
	if o.Requests == nil {
		o.Requests = func(types.NamespacedName, target.PodRequests) {}
	}
	if o.ResolversChanged == nil {
		o.ResolversChanged = func([]string) {}
	}
	if o.TargetKeys == nil {
		o.TargetKeys = &resources.TargetKeys{}
	}
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	if o.InformerMetrics == nil {
		o.InformerMetrics = informers.NewMetrics(prometheus.NewRegistry())
	}
}
