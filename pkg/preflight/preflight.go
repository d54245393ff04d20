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

// Package preflight reads what an ElastiService names in the cluster and
// reports what will not work as it is.
//
// It rejects nothing, as all of it can become right later. It does not know how the
// controller acts on what it reads. Begin with Checker.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti"
	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/compatibility"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

// warningTimeout is how long a write waits for warnings. A cluster that does not
// respond in time is not warned about.
const warningTimeout = 500 * time.Millisecond

// Warnings are for people who write a few objects. A client that writes thousands
// does not read them, and must not load the cluster with three more requests for
// each: conditions say the same later.
const (
	lookupsPerSecond = 5
	lookupsAtOnce    = 20
)

// Options are the clients of the cluster that the objects are in.
type Options struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
	Scaling    *scaling.Client
}

// Checker reports what an ElastiService does not fit. It is safe for concurrent use.
type Checker struct {
	options Options
	// lookups bounds how often the cluster is queried.
	lookups flowcontrol.PassiveRateLimiter
}

// New returns a checker. It makes no request.
func New(options Options) *Checker {
	return &Checker{options: options, lookups: flowcontrol.NewTokenBucketPassiveRateLimiter(lookupsPerSecond, lookupsAtOnce)}
}

// Warnings returns a sentence for each thing that will not work as it is. What
// cannot be found out within half a second is left out, and so is everything
// when many are written at once.
func (c *Checker) Warnings(ctx context.Context, elastiService *elasti.ElastiService) []string {
	if !c.lookups.TryAccept() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	var aboutService, aboutTarget, aboutAutoscaler []string
	var group sync.WaitGroup
	group.Go(func() { aboutService = c.checkService(ctx, elastiService) })
	group.Go(func() { aboutTarget = c.checkTarget(ctx, elastiService) })
	group.Go(func() { aboutAutoscaler = c.checkAutoscaler(ctx, elastiService) })
	group.Wait()
	return slices.Concat(aboutService, aboutTarget, aboutAutoscaler)
}

func (c *Checker) checkService(ctx context.Context, elastiService *elasti.ElastiService) []string {
	name := elastiService.Spec.Service
	service, err := c.options.Kubernetes.CoreV1().Services(elastiService.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return []string{fmt.Sprintf("spec.service: there is no Service %q yet, so nothing can wake the target; create it", name)}
	}
	if err != nil {
		return nil
	}
	always := elastiService.Spec.Proxy != nil && elastiService.Spec.Proxy.Policy == elasti.ProxyAlways
	return serviceWarnings(service, always)
}

// serviceWarnings returns which properties of a Service keep traffic from the
// resolvers. always is true when they stay in the path of an awake target.
func serviceWarnings(service *corev1.Service, always bool) []string {
	warn := func(problem string) string {
		return fmt.Sprintf("spec.service: the Service %q %s", service.Name, problem)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{warn("is of type ExternalName, whose traffic never reaches a resolver; use one with a selector")}
	}
	var warnings []string
	if len(service.Spec.Selector) == 0 {
		warnings = append(warnings, warn("has no selector, so the pods of the target cannot be found; give it one"))
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		warnings = append(warnings, warn("is headless: clients that remember a pod's address do not reach a resolver; give it a cluster IP"))
	}
	return append(warnings, about("spec.service", compatibility.OfService(service, always))...)
}

// about returns findings as warnings about a field.
func about(field string, findings []compatibility.Finding) []string {
	var warnings []string
	for _, finding := range findings {
		warnings = append(warnings, field+": "+finding.Message)
	}
	return warnings
}

func (c *Checker) checkTarget(ctx context.Context, elastiService *elasti.ElastiService) []string {
	ref := elastiService.Spec.ScaleTargetRef
	target := scaling.TargetOf(elastiService.Namespace, v1alpha1.ScaleTargetRef(ref))
	resource, object, err := c.read(ctx, target)
	var kindError *scaling.KindError
	switch {
	case errors.As(err, &kindError):
		return []string{fmt.Sprintf("spec.scaleTargetRef: %v", kindError)}
	case apierrors.IsNotFound(err):
		return []string{fmt.Sprintf("spec.scaleTargetRef: there is no %s %q yet, so it cannot be woken; create it", ref.Kind, ref.Name)}
	case err != nil:
		return nil
	}
	var pods *corev1.PodSpec
	var traits *compatibility.TargetTraits
	if object != nil {
		pods = podTemplate(object)
		traits = ptr.To(compatibility.TraitsOf(object, pods))
	}
	warnings := about("spec.scaleTargetRef", compatibility.OfTarget(resource, ref.Kind, ref.Name, elastiService.Annotations, traits))
	if pods != nil && elastiService.Spec.Proxy != nil && elastiService.Spec.Proxy.Readiness == elasti.ReadinessEndpoints {
		warnings = append(warnings, probeWarnings(pods)...)
	}
	return warnings
}

// read returns a target with the resource of its kind, or nil for the target when it
// exists and may not be read. The error is that of a missing kind or target, among others.
func (c *Checker) read(ctx context.Context, target scaling.Target) (schema.GroupResource, *unstructured.Unstructured, error) {
	resource, err := c.options.Scaling.Resolve(ctx, target)
	if err != nil {
		return schema.GroupResource{}, nil, err
	}
	object, err := c.options.Dynamic.Resource(resource).Namespace(target.Namespace).Get(ctx, target.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		// Of most kinds the scale is all that we may read.
		_, err := c.options.Scaling.Get(ctx, target)
		return resource.GroupResource(), nil, err
	}
	return resource.GroupResource(), object, err
}

// checkAutoscaler returns how the autoscaler gets in the way of sleeping. That
// it does not exist is reported by a condition: the target sleeps without it.
func (c *Checker) checkAutoscaler(ctx context.Context, elastiService *elasti.ElastiService) []string {
	spec := elastiService.Spec.Autoscaler
	if spec == nil {
		return nil
	}
	resource, ok := scaling.AutoscalerResource(string(spec.Type))
	if !ok {
		return nil
	}
	object, err := c.options.Dynamic.Resource(resource).Namespace(elastiService.Namespace).Get(ctx, spec.Name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return about("spec.autoscaler", compatibility.OfAutoscaler(string(spec.Type), object))
}

// podTemplate returns the pods of a template where workloads have it, or nil
// when there is none, or it is one of something else.
func podTemplate(target *unstructured.Unstructured) *corev1.PodSpec {
	template, found, err := unstructured.NestedMap(target.Object, "spec", "template", "spec")
	if err != nil || !found || template["containers"] == nil {
		return nil
	}
	pods := &corev1.PodSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pods); err != nil {
		return nil
	}
	return pods
}

// slowProbeSeconds is the period from which on a readiness probe is what a
// woken request waits for. The default of Kubernetes, 10 s, is one.
const slowProbeSeconds = 2

func probeWarnings(pods *corev1.PodSpec) []string {
	var warnings []string
	for _, container := range pods.Containers {
		if probe := container.ReadinessProbe; probe != nil && probe.PeriodSeconds > slowProbeSeconds {
			warnings = append(warnings, fmt.Sprintf("spec.proxy.readiness: with Endpoints, held requests wait for the readiness probe of container %q, which runs every %d s; use Probe, or a shorter periodSeconds", container.Name, probe.PeriodSeconds))
		}
	}
	return warnings
}
