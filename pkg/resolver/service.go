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

package resolver

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/metrics"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/probe"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/service"
	"github.com/truefoundry/elasti-apiserver/pkg/resolver/wake"
)

// newService makes what is kept for one ElastiService: its metrics, and what
// wakes its target and queries its pods while something is held.
func (r *Resolver) newService(object *v1alpha1.ElastiService, config *service.Config) *service.Service {
	var observed *metrics.Service
	s := service.New(service.Options{
		Namespace:     object.Namespace,
		Name:          object.Name,
		UID:           object.UID,
		PublicService: object.Spec.Service,
		Config:        config,
		Budget:        r.budget,
		Dialer:        r.dialer,
		ServeGrace:    r.options.Drain.ServeGrace,
		PathTimeout:   r.options.Drain.PathTimeout,
		Logger:        r.options.Logger,
		Tasks:         r.tasks,
		Traffic:       r.reporter.Track(object.Namespace, object.Name),
		Finish: func(record *accesslog.Record) {
			observed.Ended(record)
			r.tracer.Record(record)
			// The line is the last of it: a reader of it finds all the rest.
			r.log(record)
		},
		Closed: func() { observed.Remove() },
		Workers: func(s *service.Service) []service.Worker {
			observed = r.metrics.Service(object.Namespace, object.Spec.Service, s.Queue())
			return []service.Worker{r.waker(s, observed.WakeCalled), r.prober(s)}
		},
	})
	return s
}

func (r *Resolver) waker(s *service.Service, observe func(time.Duration, error)) *wake.Waker {
	return wake.New(wake.Options{
		Client:    r.options.Elasti.ElastiV1alpha1().ElastiServices(s.Namespace),
		Namespace: s.Namespace,
		Name:      s.Name,
		Demand:    s.Queue(),
		Observe:   observe,
		Calls:     &r.wakeCalls,
		Tasks:     r.tasks,
		Beside:    r.wakesBeside,
	})
}

func (r *Resolver) prober(s *service.Service) *probe.Prober {
	return probe.New(probe.Options{
		Queue:  s.Queue(),
		Probes: func() *v1alpha1.ReadinessProbes { return s.Config().Probes },
		Slots:  r.probeSlots,
		Tasks:  r.tasks,
	})
}

// reports reports the activity of services.
type reports struct{ elasti versioned.Interface }

// ReportActivity implements activity.Client.
func (r reports) ReportActivity(ctx context.Context, namespace, name string, report *v1alpha1.ActivityReport) error {
	_, err := r.elasti.ElastiV1alpha1().ElastiServices(namespace).ReportActivity(ctx, name, report, metav1.CreateOptions{})
	return err
}

// log writes a line of the access log.
func (r *Resolver) log(record *accesslog.Record) {
	if r.options.AccessLog != nil {
		r.options.AccessLog.Write(record)
	}
}

// process is what the metrics of a resolver as a whole are read from.
type process struct{ resolver *Resolver }

// Listeners implements metrics.Process.
func (p process) Listeners() int { return p.resolver.listeners.Count() }

// Connections implements metrics.Process.
func (p process) Connections() int { return p.resolver.connections.count() }

// HeldBytes implements metrics.Process.
func (p process) HeldBytes() int64 { return p.resolver.budget.Used() }

// HeldBytesLimit implements metrics.Process.
func (p process) HeldBytesLimit() int64 { return p.resolver.options.Limits.HeldBytes }

// ConnectionLimit implements metrics.Process.
func (p process) ConnectionLimit() int { return p.resolver.connections.limits.process() }

// AccessLogDropped implements metrics.Process.
func (p process) AccessLogDropped() int64 {
	if p.resolver.options.AccessLog == nil {
		return 0
	}
	return p.resolver.options.AccessLog.Dropped()
}
