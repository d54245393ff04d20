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

package sleep

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

// maxWakeReasonBytes bounds the reason of a WakeRequest.
const maxWakeReasonBytes = 256

// Sleeper requests sleep of targets. It is safe for concurrent use.
type Sleeper interface {
	// Sleep requests that the target is put to sleep. It returns before the target
	// sleeps, and does nothing for one that sleeps already.
	Sleep(ctx context.Context, elastiService *v1alpha1.ElastiService) error
	// KeepAwake cancels the request of Sleep, and does nothing when there is none. A
	// target that is being scaled to zero meanwhile is woken.
	KeepAwake(ctx context.Context, elastiService *v1alpha1.ElastiService) error
}

// Waker wakes targets. It is safe for concurrent use.
type Waker interface {
	// Wake scales the target from zero, or cancels its scale-down. The reason is
	// for users.
	Wake(ctx context.Context, elastiService *v1alpha1.ElastiService, reason string) error
}

// Report is what the scheduler writes into the status of an ElastiService.
type Report struct {
	// LastActivity is when the target was last known to be used. Nil if that
	// is not known.
	LastActivity *metav1.Time
	// TriggersHealthy is the condition of that type. Nil without triggers.
	TriggersHealthy *metav1.Condition
	// ScalingConflict and DryRun are the conditions of these types. Nil when the
	// status must not have them.
	ScalingConflict *metav1.Condition
	DryRun          *metav1.Condition
	// LastWake is the last wake of the target. Nil if none is known.
	LastWake *v1alpha1.WakeRecord
	// Sleeping is the condition of that type. It is always there.
	Sleeping *metav1.Condition
	// SharedWith are the names of the other ElastiServices of the target, and
	// TargetShared the condition of that type. Both are empty when there are none.
	SharedWith   []string
	TargetShared *metav1.Condition
}

// Reporter writes reports into statuses. It is safe for concurrent use.
type Reporter interface {
	// Report writes a report into the status.
	Report(ctx context.Context, elastiService *v1alpha1.ElastiService, report Report) error
}

// Client sleeps and wakes through the API, as any client of it could, and writes
// reports into statuses. It is safe for concurrent use.
type Client struct {
	elasti   versioned.Interface
	statuses Statuses
}

// Statuses changes the statuses of ElastiServices inside of the server, which no
// request can. It is safe for concurrent use.
type Statuses interface {
	// UpdateStatus calls change with the stored ElastiService, and stores the
	// status that change leaves. change may be called more than once.
	UpdateStatus(ctx context.Context, key types.NamespacedName, uid types.UID, change func(stored *v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error)
}

var (
	_ Sleeper  = &Client{}
	_ Waker    = &Client{}
	_ Reporter = &Client{}
)

// NewClient returns a client that sleeps and wakes through a clientset, and
// reports through statuses.
func NewClient(elasti versioned.Interface, statuses Statuses) *Client {
	return &Client{elasti: elasti, statuses: statuses}
}

// Sleep scales the ElastiService to 0, if it is still the same object.
func (c *Client) Sleep(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Namespace: elastiService.Namespace,
		Name:      elastiService.Name,
		UID:       elastiService.UID,
	}}
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		UpdateScale(ctx, elastiService.Name, scale, metav1.UpdateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("requesting sleep: %w", err)
	}
	return nil
}

// KeepAwake removes the request for sleep from the status.
func (c *Client) KeepAwake(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	_, err := c.statuses.UpdateStatus(ctx, resources.KeyOf(elastiService), elastiService.UID, func(stored *v1alpha1.ElastiService) error {
		stored.Status.SleepRequestedTime, stored.Status.SleepRequestedBy = nil, ""
		return nil
	})
	if err != nil {
		return fmt.Errorf("canceling the request for sleep: %w", err)
	}
	return nil
}

// Wake creates a WakeRequest.
func (c *Client) Wake(ctx context.Context, elastiService *v1alpha1.ElastiService, reason string) error {
	if len(reason) > maxWakeReasonBytes {
		reason = strings.ToValidUTF8(reason[:maxWakeReasonBytes], "")
	}
	request := &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Reason: reason}}
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		Wake(ctx, elastiService.Name, request, metav1.CreateOptions{FieldManager: v1alpha1.FieldManager}); err != nil {
		return fmt.Errorf("waking the target: %w", err)
	}
	return nil
}

// Report writes a report into the status, and changes nothing else of it.
func (c *Client) Report(ctx context.Context, elastiService *v1alpha1.ElastiService, report Report) error {
	_, err := c.statuses.UpdateStatus(ctx, resources.KeyOf(elastiService), elastiService.UID, func(stored *v1alpha1.ElastiService) error {
		if report.LastActivity != nil {
			stored.Status.LastActivityTime = report.LastActivity.DeepCopy()
		}
		if stored.Spec.ScaleTargetRef == elastiService.Spec.ScaleTargetRef {
			stored.Status.LastWake = v1alpha1.LatestWake(stored.Status.LastWake, report.LastWake.DeepCopy(), time.Now())
		}
		stored.Status.TargetSharedWith = slices.Clone(report.SharedWith)
		setCondition(&stored.Status, v1alpha1.ConditionTriggersHealthy, report.TriggersHealthy)
		setCondition(&stored.Status, v1alpha1.ConditionScalingConflict, report.ScalingConflict)
		setCondition(&stored.Status, v1alpha1.ConditionDryRun, report.DryRun)
		setCondition(&stored.Status, v1alpha1.ConditionSleeping, report.Sleeping)
		setCondition(&stored.Status, v1alpha1.ConditionTargetShared, report.TargetShared)
		return nil
	})
	if err != nil {
		return fmt.Errorf("updating status: %w", err)
	}
	return nil
}

// setCondition sets a condition in a status, or with nil removes that of the type.
func setCondition(status *v1alpha1.ElastiServiceStatus, conditionType string, condition *metav1.Condition) {
	if condition == nil {
		meta.RemoveStatusCondition(&status.Conditions, conditionType)
		return
	}
	if found := meta.FindStatusCondition(status.Conditions, conditionType); found != nil {
		// With the time of the report, which knows whether it is a transition.
		*found = *condition
		return
	}
	status.Conditions = append(status.Conditions, *condition)
}
