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
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/target/targettest"
	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	elastifake "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/truefoundry/elasti-apiserver/pkg/scaling"
)

const (
	shop = "shop"
	// waitTimeout is how long a test waits for what must come. It says nothing
	// about how fast it comes.
	waitTimeout = time.Minute
)

// cluster is a fake cluster with a Service "cart" and a Deployment "cart", two
// ready resolvers, and a controller.
type cluster struct {
	t       *testing.T
	elasti  *elastifake.Clientset
	host    *hostfake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	scaling *fakeScaling
	events  *events.FakeRecorder
	options Options
	version int
	claims  *proxyportstest.Claims
	// beforeStatus, if set, is called with each status before it is stored.
	beforeStatus func(*v1alpha1.ElastiServiceStatus)
	// writing makes the patches of the fake client atomic, and edits with
	// them: it reads and writes in two steps.
	writing sync.Mutex
	// statusWrites counts the writes of the statuses by name. Guarded by writing.
	statusWrites map[string]int
	// lastVersion is the last resource version of an object.
	lastVersion atomic.Int64
}

// UpdateStatus implements statuswriter.Statuses.
func (c *cluster) UpdateStatus(_ context.Context, key types.NamespacedName, uid types.UID, change func(*v1alpha1.ElastiService) error) (*v1alpha1.ElastiService, error) {
	if c.beforeStatus != nil {
		changed, err := c.stored(key, uid)
		if err == nil && change(changed) == nil {
			c.beforeStatus(&changed.Status)
		}
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	stored, err := c.stored(key, uid)
	if err != nil {
		return nil, err
	}
	changed := stored.DeepCopy()
	if err := change(changed); err != nil {
		return nil, err
	}
	stored.Status = changed.Status
	stored = c.versioned(stored).(*v1alpha1.ElastiService)
	c.statusWrites[key.Name]++
	if err := c.elasti.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("elastiservices"), stored, key.Namespace); err != nil {
		return nil, err
	}
	return stored.DeepCopy(), nil
}

func (c *cluster) stored(key types.NamespacedName, uid types.UID) (*v1alpha1.ElastiService, error) {
	resource := v1alpha1.SchemeGroupVersion.WithResource("elastiservices")
	object, err := c.elasti.Tracker().Get(resource, key.Namespace, key.Name)
	if err != nil {
		return nil, err
	}
	found := object.DeepCopyObject().(*v1alpha1.ElastiService)
	if found.UID != uid {
		return nil, apierrors.NewNotFound(resource.GroupResource(), key.Name)
	}
	return found, nil
}

// Load implements Signers.
func (c *cluster) Load(context.Context) (*signature.Signer, error) { return c.options.Signer, nil }

func newSigner(t *testing.T) *signature.Signer {
	t.Helper()
	signer, err := signature.New(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// clientReader reads ElastiServices through a client.
type clientReader struct{ versioned.Interface }

func (r clientReader) List(ctx context.Context, namespace string, options metav1.ListOptions) (*v1alpha1.ElastiServiceList, error) {
	return r.ElastiV1alpha1().ElastiServices(namespace).List(ctx, options)
}

func (r clientReader) Watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	return r.ElastiV1alpha1().ElastiServices(namespace).Watch(ctx, options)
}

// IsWatchListSemanticsUnSupported tells informers that the fake client cannot
// stream lists.
func (clientReader) IsWatchListSemanticsUnSupported() bool { return true }

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t:      t,
		elasti: elastifake.NewClientset(),
		host:   hostfake.NewClientset(),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			deploymentsResource: "DeploymentList", widgetsResource: "WidgetList",
			scaling.ScaledObjects: "ScaledObjectList", scaling.HorizontalPodAutoscalers: "HorizontalPodAutoscalerList"}),
		events: events.NewFakeRecorder(1000),
		claims: proxyportstest.New(),

		statusWrites: map[string]int{},
	}
	informerstest.WatchFromList(t, &c.elasti.Fake, c.elasti.Tracker())
	informerstest.WatchFromList(t, &c.host.Fake, c.host.Tracker())
	informerstest.WatchFromList(t, &c.dynamic.Fake, c.dynamic.Tracker())
	c.keepVersions()
	informerstest.React(&c.elasti.Fake, "patch", "elastiservices", c.patchElastiService)
	c.scaling = &fakeScaling{cluster: c, kinds: map[string]string{"Deployment": "deployments"}}
	c.options = Options{
		Elasti: c.elasti, Statuses: c, Claims: c.claims, Signer: newSigner(t), Reader: clientReader{c.elasti}, Host: c.host, HostDynamic: c.dynamic, Scaling: c.scaling, Recorder: c.events,
		ResolverNamespace: "elasti-system", ResolverService: "elasti-resolver",
		ProxyPortRange: utilnet.PortRange{Base: 10000, Size: 100},
		Clock:          acceleratedClock{time.Now()},
	}
	c.setEndpoints("elasti-system", "elasti-resolver", "10.0.0.1", "10.0.0.2")
	c.create(cartService())
	c.setDeployment("cart", 0, 0)
	return c
}

// start runs a controller until the returned function is called or the test ends.
func (c *cluster) start() (stop func()) {
	c.t.Helper()
	_, ctx := ktesting.NewTestContext(c.t)
	return c.startWith(ctx)
}

func (c *cluster) startWith(ctx context.Context) (stop func()) {
	c.t.Helper()
	controller, err := New(c.options)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("Run: %v", err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

func cartService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "cart", Annotations: map[string]string{"external-dns": "cart.example.com"}},
		Spec: corev1.ServiceSpec{
			Type:      corev1.ServiceTypeLoadBalancer,
			ClusterIP: "10.96.0.10",
			Selector:  map[string]string{"app": "cart"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromString("web"), Protocol: corev1.ProtocolTCP, NodePort: 30080, AppProtocol: ptr.To("http")},
				{Name: "admin", Port: 81, TargetPort: intstr.FromInt32(8081), Protocol: corev1.ProtocolTCP},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
			},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
	}
}

func cartElastiService() *v1alpha1.ElastiService {
	return &v1alpha1.ElastiService{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "cart", UID: "cart-uid", Generation: 1},
		Spec: v1alpha1.ElastiServiceSpec{
			Service:           "cart",
			MinTargetReplicas: ptr.To[int32](2),
			ScaleTargetRef:    v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "cart"},
		},
	}
}

// create adds an object, or replaces it.
func (c *cluster) create(object runtime.Object) {
	c.t.Helper()
	if _, ok := object.(*v1alpha1.ElastiService); ok {
		c.put(c.elasti.Tracker(), c.versioned(object))
		return
	}
	c.put(c.host.Tracker(), c.versioned(object))
}

func (c *cluster) put(tracker clienttesting.ObjectTracker, object runtime.Object) {
	c.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	kind := v1alpha1.SchemeGroupVersion.WithKind("ElastiService")
	if err == nil {
		kind = kinds[0]
	}
	if typed, ok := object.(*unstructured.Unstructured); ok {
		kind = typed.GroupVersionKind()
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	accessor, err := meta.Accessor(object)
	if err != nil {
		c.t.Fatal(err)
	}
	err = tracker.Create(resource, object, accessor.GetNamespace())
	if apierrors.IsAlreadyExists(err) {
		err = tracker.Update(resource, object, accessor.GetNamespace())
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// setEndpoints makes ready endpoints in the slice that Kubernetes keeps for a Service.
func (c *cluster) setEndpoints(namespace, service string, addresses ...string) {
	c.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service + "-abcde", Labels: map[string]string{
			discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To("node-1"),
			Zone:       ptr.To("zone-a"),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: "pod"},
		})
	}
	c.create(slice)
}

// setDeployment makes a Deployment with these numbers of desired and existing replicas.
func (c *cluster) setDeployment(name string, replicas, existing int32) {
	c.t.Helper()
	c.version++
	c.put(c.dynamic.Tracker(), targettest.Deployment(shop, name, replicas, existing, c.version))
}

func (c *cluster) elastiService(name string) *v1alpha1.ElastiService {
	c.t.Helper()
	found, err := c.elasti.ElastiV1alpha1().ElastiServices(shop).Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return found
}

// edit changes an ElastiService as others than the controller do.
func (c *cluster) edit(name string, change func(*v1alpha1.ElastiService)) {
	c.t.Helper()
	// Through the tracker: the client takes its own lock before this one.
	c.writing.Lock()
	defer c.writing.Unlock()
	object, err := c.elasti.Tracker().Get(v1alpha1.SchemeGroupVersion.WithResource("elastiservices"), shop, name)
	if err != nil {
		c.t.Fatal(err)
	}
	elastiService := object.DeepCopyObject().(*v1alpha1.ElastiService)
	change(elastiService)
	c.create(elastiService)
}

// resolverSlices are the slices of a Service that are not of Kubernetes.
func (c *cluster) resolverSlices(service string) []discoveryv1.EndpointSlice {
	c.t.Helper()
	found, err := c.host.DiscoveryV1().EndpointSlices(shop).List(c.t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(found.Items, func(slice discoveryv1.EndpointSlice) bool {
		return slice.Labels[discoveryv1.LabelManagedBy] != v1alpha1.SliceManagedBy
	})
}

func (c *cluster) serviceNames() []string {
	c.t.Helper()
	found, err := c.host.CoreV1().Services(shop).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, service := range found.Items {
		names = append(names, service.Name)
	}
	slices.Sort(names)
	return names
}

// eventually waits until check returns nothing, which is what is still missing.
func (c *cluster) eventually(check func() string) {
	c.t.Helper()
	missing := ""
	err := wait.PollUntilContextTimeout(c.t.Context(), 5*time.Millisecond, waitTimeout, true, func(context.Context) (bool, error) {
		missing = check()
		return missing == "", nil
	})
	if err != nil {
		c.t.Fatalf("still missing: %s", missing)
	}
}

// eventuallyMode waits for a mode in the status, and for slices to agree.
func (c *cluster) eventuallyMode(name string, mode v1alpha1.Mode) {
	c.t.Helper()
	c.eventually(func() string {
		elastiService := c.elastiService(name)
		if elastiService.Status.Mode != mode {
			return fmt.Sprintf("mode %s, it is %q", mode, elastiService.Status.Mode)
		}
		if got := len(c.resolverSlices(elastiService.Spec.Service)) > 0; got != (mode == v1alpha1.ModeProxy) {
			return fmt.Sprintf("slices for mode %s", mode)
		}
		return ""
	})
}

// eventuallyCondition waits for a condition with a status and reason.
func (c *cluster) eventuallyCondition(name, conditionType string, status metav1.ConditionStatus, reason string) {
	c.t.Helper()
	c.eventually(func() string {
		found := findCondition(c.elastiService(name), conditionType)
		if found == nil || found.Status != status || found.Reason != reason {
			return fmt.Sprintf("condition %s=%s %s, it is %+v", conditionType, status, reason, found)
		}
		return ""
	})
}

// requestSleep does what scaling an ElastiService to zero does.
func (c *cluster) requestSleep(name string) {
	c.t.Helper()
	now := metav1.Now()
	c.edit(name, func(elastiService *v1alpha1.ElastiService) { elastiService.Status.SleepRequestedTime = &now })
}

// beforeRequestsAreChecked has change called whenever a target is about to be scaled to
// zero, and the requests for sleep are about to be read from the storage: too late for
// the watch. change must not use the client of ElastiServices.
func (c *cluster) beforeRequestsAreChecked(change func()) {
	informerstest.React(&c.elasti.Fake, "list", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		// The watch lists all, without a field selector.
		if !action.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() {
			change()
		}
		return false, nil, nil
	})
}

func (c *cluster) deleteService(name string) {
	c.t.Helper()
	if err := c.host.CoreV1().Services(shop).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Error(err)
	}
}

// eventuallyEvent waits for an Event with a reason.
func (c *cluster) eventuallyEvent(reason string) {
	c.t.Helper()
	expired := time.After(waitTimeout)
	for {
		select {
		case event := <-c.events.Events:
			if strings.Contains(event, " "+reason+" ") {
				return
			}
		case <-expired:
			c.t.Fatalf("no Event %s", reason)
		}
	}
}

var (
	// deploymentsResource is the resource of most targets.
	deploymentsResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	// widgetsResource is one of which only the scale subresource is known.
	widgetsResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)
