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

package scaling

import (
	"context"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// minReplicas returns the minReplicas of a HorizontalPodAutoscaler.
func (c *Client) minReplicas(ctx context.Context, namespace, name string) (int32, error) {
	autoscaler := &autoscalingv2.HorizontalPodAutoscaler{}
	err := c.rest.Get().AbsPath("/apis/autoscaling/v2").
		Namespace(namespace).Resource("horizontalpodautoscalers").Name(name).
		Do(ctx).Into(autoscaler)
	if err != nil {
		return 0, fmt.Errorf("reading HorizontalPodAutoscaler %s/%s: %w", namespace, name, err)
	}
	if autoscaler.Spec.MinReplicas == nil {
		return 1, nil
	}
	return *autoscaler.Spec.MinReplicas, nil
}
