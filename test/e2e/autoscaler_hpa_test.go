//go:build autoscalers

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

package e2e

import (
	"sync/atomic"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/e2e/cluster"
)

// hpaTimeout bounds a test with a HorizontalPodAutoscaler, which is synced every
// 15 s.
const hpaTimeout = 5 * time.Minute

// A HorizontalPodAutoscaler may scale to zero too, also a target that was woken just
// now. It cannot be prevented. A condition reports it, resolvers are in the path each
// time, and requests wake the target each time.
func TestHorizontalPodAutoscalerAtZeroIsReportedAndTrafficWakes(t *testing.T) {
	s := newSceneWithin(t, hpaTimeout)
	observer := s.observe()
	var waiting atomic.Int64
	s.registerAPI("external.metrics.k8s.io", "v1beta1", s.serveQueueLengths(map[string]func() int64{"orders": waiting.Load}))
	app := s.NewApplication(s.namespace, cluster.ApplicationOptions{Replicas: 1, Linger: lingering, Spec: func(spec *v1alpha1.ElastiServiceSpec) {
		spec.Autoscaler = &v1alpha1.AutoscalerSpec{Type: v1alpha1.AutoscalerHPA, Name: "web"}
	}})
	s.check(app.Create(s.ctx))
	s.awaitPods(app, 1)
	started := time.Now()
	_, err := s.Host.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Create(s.ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: app.Name},
			MinReplicas:    ptr.To[int32](0),
			MaxReplicas:    3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "queue_length", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "orders"}}},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](0)}},
		},
	}, metav1.CreateOptions{})
	s.check(err)
	condition, err := app.AwaitCondition(s.ctx, v1alpha1.ConditionAutoscalerCompatible, metav1.ConditionFalse)
	s.check(err)
	if condition.Reason != v1alpha1.ReasonAutoscalerScalesToZero {
		t.Errorf("the condition is %+v", condition)
	}

	asleep, err := observer.Await(s.ctx, started, cluster.Scaled, app.Name, "0")
	s.check(err)
	for range 2 {
		s.check(app.AwaitResolverSlice(s.ctx, true))
		s.awaitFromResolver(app)
		awake, err := observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1")
		s.check(err)
		// Requests get responses until it is scaled to zero again.
		traffic := &cluster.Traffic{Application: app, Path: "/", PerSecond: 5, Limit: 3000, Timeout: time.Minute}
		stop := s.background(traffic.Run)
		asleep, err = observer.Await(s.ctx, awake.At, cluster.Scaled, app.Name, "0")
		s.check(err)
		_, err = observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1")
		s.check(err)
		stop()
		s.checkTraffic(traffic)
		asleep, err = observer.Await(s.ctx, asleep.At.Add(time.Nanosecond), cluster.Scaled, app.Name, "0")
		s.check(err)
		s.check(app.AwaitAsleep(s.ctx))
	}

	// The autoscaler may also scale up a target that it has scaled to zero.
	waiting.Store(1)
	_, err = observer.Await(s.ctx, asleep.At, cluster.Scaled, app.Name, "1")
	s.check(err)
}
