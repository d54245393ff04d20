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
	"errors"
	"fmt"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// conflictBackoff is the wait between attempts to write an object that others
// write too: 5, 10, 20 … 320 ms, together under 0.7 s, so that a request that
// waits for a wake is not held up for long by an autoscaler that writes often.
var conflictBackoff = wait.Backoff{Steps: 8, Duration: 5 * time.Millisecond, Factor: 2, Jitter: 0.2}

// Options configure a Client.
type Options struct {
	// Config connects to the cluster that the targets are in. Its QPS and
	// Burst limit the client.
	Config *rest.Config
	// Clock is the time for the discovery cache. Defaults to the real clock.
	Clock clock.PassiveClock
}

// Client reads and writes the scales of targets. Errors carry the API status
// of the server. It is safe for concurrent use.
type Client struct {
	rest  rest.Interface
	kinds *kinds
	clock clock.PassiveClock
	// raised has the time at which each target was last scaled up by this client.
	raised *lru.Cache
}

// maxRaised bounds how many targets raised has. The least recently used are evicted.
const maxRaised = 20000

// raisedKey identifies a target, whatever the spelling of its kind is.
type raisedKey struct {
	resource        schema.GroupResource
	namespace, name string
}

// ScaledUpSince reports whether this client scaled a target up, or tried to, at a
// time or later. Kubernetes does not record which client scaled an object from zero
// through its scale subresource.
func (c *Client) ScaledUpSince(ctx context.Context, target Target, since time.Time) bool {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return false
	}
	at, ok := c.raised.Get(raisedKey{resource.GroupResource(), target.Namespace, target.Name})
	return ok && !at.(time.Time).Before(since)
}

// NewClient returns a client. It makes no request.
func NewClient(options Options) (*Client, error) {
	if options.Config == nil {
		return nil, errors.New("scaling: Options.Config is missing")
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	config := rest.CopyConfig(options.Config)
	// Custom resources are served as JSON only.
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeJSON
	config.GroupVersion = nil
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("creating the client for scales: %w", err)
	}
	return &Client{rest: client, kinds: newKinds(client, options.Clock), clock: options.Clock, raised: lru.New(maxRaised)}, nil
}

// Resolve returns the resource of a target's kind. The error is a *KindError
// when objects of the kind cannot be scaled. Kinds that are installed later
// are found within a few seconds.
func (c *Client) Resolve(ctx context.Context, target Target) (schema.GroupVersionResource, error) {
	return c.kinds.resolve(ctx, target.APIVersion, target.Kind)
}

// Get returns the scale of a target.
func (c *Client) Get(ctx context.Context, target Target) (*autoscalingv1.Scale, error) {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	return c.get(ctx, resource, target)
}

// Scale sets the number of replicas of a target, whatever it was, and returns
// the scale that the server returned.
func (c *Client) Scale(ctx context.Context, target Target, replicas int32, dryRun bool) (*autoscalingv1.Scale, error) {
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	scale, _, err := c.change(ctx, resource, target, nil, dryRun, func(int32) int32 { return replicas })
	return scale, err
}

// ScaleToZero sets the number of replicas of a target to zero, if its object is
// still as it was when the scale was read. The error is a conflict otherwise.
func (c *Client) ScaleToZero(ctx context.Context, target Target, read *autoscalingv1.Scale) error {
	if read.ResourceVersion == "" {
		return fmt.Errorf("scaling %s: its scale has no resource version", target)
	}
	resource, err := c.Resolve(ctx, target)
	if err != nil {
		return err
	}
	desired := read.DeepCopy()
	desired.Spec.Replicas = 0
	if _, err := c.update(ctx, resource, desired, false); err != nil {
		return fmt.Errorf("scaling %s: %w", target, err)
	}
	return nil
}

// change reads the scale, unless current is given, and writes it when replicasFor
// returns another number of replicas. It retries when another client wrote in
// between. It reports whether it wrote.
func (c *Client) change(ctx context.Context, resource schema.GroupVersionResource, target Target, current *autoscalingv1.Scale, dryRun bool, replicasFor func(replicas int32) int32) (*autoscalingv1.Scale, bool, error) {
	changed := false
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		if current == nil {
			var err error
			if current, err = c.get(ctx, resource, target); err != nil {
				return err
			}
		}
		replicas := replicasFor(current.Spec.Replicas)
		if replicas == current.Spec.Replicas {
			return nil
		}
		if replicas > current.Spec.Replicas && !dryRun {
			// Recorded before the write: a watch may deliver it before the response.
			c.raised.Add(raisedKey{resource.GroupResource(), target.Namespace, target.Name}, c.clock.Now())
		}
		desired := current.DeepCopy()
		desired.Spec.Replicas = replicas
		current = nil
		updated, err := c.update(ctx, resource, desired, dryRun)
		if err != nil {
			return err
		}
		current, changed = updated, true
		return nil
	})
	if err != nil {
		return nil, false, fmt.Errorf("scaling %s: %w", target, err)
	}
	return current, changed, nil
}

func (c *Client) get(ctx context.Context, resource schema.GroupVersionResource, target Target) (*autoscalingv1.Scale, error) {
	scale := &autoscalingv1.Scale{}
	err := c.rest.Get().AbsPath(versionPath(resource.GroupVersion())...).
		Namespace(target.Namespace).Resource(resource.Resource).Name(target.Name).SubResource("scale").
		Do(ctx).Into(scale)
	if err != nil {
		c.forgetUnserved(resource, err)
		return nil, fmt.Errorf("reading the scale of %s: %w", target, err)
	}
	return scale, nil
}

func (c *Client) update(ctx context.Context, resource schema.GroupVersionResource, scale *autoscalingv1.Scale, dryRun bool) (*autoscalingv1.Scale, error) {
	updated := &autoscalingv1.Scale{}
	err := withDryRun(c.rest.Put(), dryRun).AbsPath(versionPath(resource.GroupVersion())...).
		Namespace(scale.Namespace).Resource(resource.Resource).Name(scale.Name).SubResource("scale").
		Param("fieldManager", v1alpha1.FieldManager).
		Body(scale).
		Do(ctx).Into(updated)
	return updated, err
}

// forgetUnserved drops the discovery of a resource that the server does not
// serve any more, so that the next use discovers again. For a missing object of a
// resource that is served, the server returns a Status with the 404; for a resource
// that is not served, it does not.
func (c *Client) forgetUnserved(resource schema.GroupVersionResource, err error) {
	if apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		c.kinds.forget(resource.GroupVersion())
	}
}

func withDryRun(request *rest.Request, dryRun bool) *rest.Request {
	if dryRun {
		request.Param("dryRun", metav1.DryRunAll)
	}
	return request
}
