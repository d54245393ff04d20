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
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	applyelasti "github.com/truefoundry/elasti-apiserver/pkg/generated/applyconfiguration/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
)

const (
	// fieldManager is the name under which sleep is requested.
	fieldManager = "elasti-apiserver"
	// statusFieldManager owns the fields of the status that are reported here.
	statusFieldManager = "elasti-sleep"
	// maxWakeReasonBytes bounds the reason of a WakeRequest.
	maxWakeReasonBytes = 256
)

// Sleeper asks for targets to be put to sleep. Safe for concurrent use.
type Sleeper interface {
	// Sleep asks for the target to be put to sleep. It returns before it
	// sleeps, and does nothing for one that sleeps already.
	Sleep(ctx context.Context, elastiService *v1alpha1.ElastiService) error
}

// Waker wakes targets. Safe for concurrent use.
type Waker interface {
	// Wake scales the target from zero, and keeps one awake that is about to
	// be put to sleep. The reason is for users.
	Wake(ctx context.Context, elastiService *v1alpha1.ElastiService, reason string) error
}

// Report is what is known of an ElastiService beside its target.
type Report struct {
	// LastActivity is when the target was last known to be used. Nil if that
	// is not known.
	LastActivity *metav1.Time
	// TriggersHealthy is the condition of that type. Nil without triggers.
	TriggersHealthy *metav1.Condition
	// ScalingConflict and DryRun are the conditions of these types. Nil if
	// they are not to be there.
	ScalingConflict *metav1.Condition
	DryRun          *metav1.Condition
}

// Reporter tells users what is known. Safe for concurrent use.
type Reporter interface {
	// Report makes a report part of the status.
	Report(ctx context.Context, elastiService *v1alpha1.ElastiService, report Report) error
}

// Client sleeps, wakes and reports through the API, as any client of it could.
// Safe for concurrent use.
type Client struct {
	elasti versioned.Interface
}

var (
	_ Sleeper  = &Client{}
	_ Waker    = &Client{}
	_ Reporter = &Client{}
)

// NewClient returns a client that works through a clientset.
func NewClient(elasti versioned.Interface) *Client { return &Client{elasti: elasti} }

// Sleep scales the ElastiService to 0, if it is still the same object.
func (c *Client) Sleep(ctx context.Context, elastiService *v1alpha1.ElastiService) error {
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Namespace: elastiService.Namespace,
		Name:      elastiService.Name,
		UID:       elastiService.UID,
	}}
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		UpdateScale(ctx, elastiService.Name, scale, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("requesting sleep: %w", err)
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
		Wake(ctx, elastiService.Name, request, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("waking the target: %w", err)
	}
	return nil
}

// Report applies the fields of the status that a report is about, and no other.
func (c *Client) Report(ctx context.Context, elastiService *v1alpha1.ElastiService, report Report) error {
	status := applyelasti.ElastiServiceStatus()
	status.LastActivityTime = report.LastActivity
	for _, condition := range []*metav1.Condition{report.TriggersHealthy, report.ScalingConflict, report.DryRun} {
		if condition == nil {
			continue
		}
		status.WithConditions(applymeta.Condition().
			WithType(condition.Type).
			WithStatus(condition.Status).
			WithReason(condition.Reason).
			WithMessage(condition.Message).
			WithObservedGeneration(condition.ObservedGeneration).
			WithLastTransitionTime(condition.LastTransitionTime))
	}
	// With the UID, an object that was deleted and made again in between does
	// not get the status of its predecessor.
	applied := applyelasti.ElastiService(elastiService.Name, elastiService.Namespace).WithUID(elastiService.UID).WithStatus(status)
	if _, err := c.elasti.ElastiV1alpha1().ElastiServices(elastiService.Namespace).
		ApplyStatus(ctx, applied, metav1.ApplyOptions{FieldManager: statusFieldManager, Force: true}); err != nil {
		return fmt.Errorf("writing the state of the triggers: %w", err)
	}
	return nil
}
