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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/proxyports/proxyportstest"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/resources"
	"github.com/truefoundry/elasti-apiserver/pkg/controller/signature"
)

// forgedService is a Service that says that it is a private one of an
// ElastiService whose target was the Deployment "database".
func forgedService(t *testing.T, name, owner string) *corev1.Service {
	t.Helper()
	managed, err := json.Marshal(resources.ManagedTarget{
		Target:            v1alpha1.ScaleTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "database"},
		MinTargetReplicas: ptr.To[int32](5),
	})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: shop, Name: name,
			Labels:      map[string]string{v1alpha1.LabelRole: v1alpha1.RolePrivate, v1alpha1.LabelManagedBy: v1alpha1.ManagedBy},
			Annotations: map[string]string{v1alpha1.AnnotationOwner: owner, v1alpha1.AnnotationTarget: string(managed)},
		},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "database"}, PublishNotReadyAddresses: true},
	}
}

// settled waits until the controller has synced everything that was there
// before: it works on an object that comes later.
func (c *cluster) settled(name string) {
	c.t.Helper()
	late := cartElastiService()
	late.Name, late.UID = name, types.UID(name+"-uid")
	late.Spec.Service = name
	c.create(late)
	c.eventuallyCondition(name, v1alpha1.ConditionServiceFound, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
}

// A tenant that may write Services, and may not scale, gets nothing scaled.
func TestForgedPrivateServicesScaleNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("database", 0, 0)
	c.create(cartElastiService())
	stop := c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	private, err := c.host.CoreV1().Services(shop).Get(t.Context(), resources.PrivateServiceName("cart"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	signed := private.Annotations[v1alpha1.AnnotationSignature]
	if signed == "" {
		t.Fatal("the private Service has no signature")
	}

	// With marks alone, with the signature of another object, and with that of
	// another key; of an ElastiService that exists, and of one that does not.
	other, err := signature.New(slices.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for owner, name := range map[string]string{"cart": "forged", "deleted": "orphan"} {
		plain := forgedService(t, name, owner)
		copied := forgedService(t, name+"-copied", owner)
		copied.Annotations[v1alpha1.AnnotationSignature] = signed
		others := forgedService(t, name+"-others", owner)
		other.Sign(&others.ObjectMeta)
		for _, service := range []*corev1.Service{plain, copied, others} {
			c.create(service)
		}
	}
	before := c.serviceNames()
	c.edit("cart", func(elastiService *v1alpha1.ElastiService) { elastiService.Spec.CooldownPeriod = ptr.To[int32](7) })
	c.settled("late")
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the database was scaled to %d", replicas)
	}
	if after := c.serviceNames(); !slices.Equal(after, before) {
		t.Errorf("there are the Services %v, were %v: what is a tenant's stays", after, before)
	}

	// Nor when everything is put back.
	stop()
	_, ctx := ktesting.NewTestContext(t)
	c.setEndpoints(shop, "cart", "10.1.0.1")
	if err := c.teardown().Run(ctx); err != nil {
		t.Error(err)
	}
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the database was scaled to %d in the teardown", replicas)
	}
	if replicas := c.scaling.replicas(t, "cart"); replicas != 2 {
		t.Errorf("the target was scaled to %d in the teardown, want its minimum of 2", replicas)
	}
	before = slices.DeleteFunc(before, func(name string) bool { return name == private.Name })
	if after := c.serviceNames(); !slices.Equal(after, before) {
		t.Errorf("the teardown left the Services %v, want %v", after, before)
	}
}

// A client that changes the target which a private Service names gets nothing scaled
// either, and the Service is put right.
func TestAnEditedPrivateServiceScalesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("database", 0, 0)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	services := c.host.CoreV1().Services(shop)
	name := resources.PrivateServiceName("cart")
	private, err := services.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := private.Annotations
	edited := private.DeepCopy()
	edited.Annotations[v1alpha1.AnnotationTarget] = forgedService(t, "", "").Annotations[v1alpha1.AnnotationTarget]
	c.create(edited)
	c.eventually(func() string {
		found, err := services.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || found.Annotations[v1alpha1.AnnotationTarget] != want[v1alpha1.AnnotationTarget] || !c.options.Signer.Made(&found.ObjectMeta) {
			return fmt.Sprintf("the Service as it was: %v", found.Annotations)
		}
		return ""
	})
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the database was scaled to %d", replicas)
	}
}

// The EndpointSlice controller leaves the slices of an ExternalName as they are, so they list
// whatever the user who made it one writes there. The API server clears the IP families of
// such a Service, and accepts no update that has some.
func TestAPrivateServiceThatAUserMakesAnExternalNameIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, replaceable := range map[string]bool{"it can be": true, "it cannot be": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.makeDualStack("cart")
			c.setResolversOfIPv6("fd00::1")
			informerstest.React(&c.host.Fake, "update", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
				spec := &action.(clienttesting.UpdateActionImpl).Object.(*corev1.Service).Spec
				if spec.Type == corev1.ServiceTypeExternalName && len(spec.IPFamilies) > 0 {
					return true, nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), "cart", nil)
				}
				return false, nil, nil
			})
			c.create(cartElastiService())
			c.start()
			c.eventuallyMode("cart", v1alpha1.ModeProxy)
			services := c.host.CoreV1().Services(shop)
			private, err := services.Get(t.Context(), c.elastiService("cart").Status.PrivateService, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !replaceable {
				informerstest.React(&c.host.Fake, "delete", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewInternalError(errors.New("the webhook does not respond"))
				})
			}
			edited := private.DeepCopy()
			edited.Spec.Type, edited.Spec.ExternalName = corev1.ServiceTypeExternalName, "x.example"
			edited.Spec.ClusterIP, edited.Spec.IPFamilies, edited.Spec.IPFamilyPolicy = "", nil, nil
			c.create(edited)
			c.eventually(func() string {
				found, err := services.Get(t.Context(), private.Name, metav1.GetOptions{})
				published := c.elastiService("cart").Status.PrivateService
				switch {
				case !replaceable && published != "":
					return "that resolvers do not connect to what it lists"
				case replaceable && (err != nil || found.UID == private.UID || !c.options.Signer.Made(&found.ObjectMeta)):
					return fmt.Sprintf("another private Service: %+v, %v", found, err)
				case replaceable && (!equality.Semantic.DeepEqual(found.Spec, private.Spec) || published != private.Name):
					return fmt.Sprintf("the private Service as it was, published: %+v, %q", found.Spec, published)
				}
				return ""
			})
		})
	}
}

// What an earlier version made has no signature. It is taken over, and so is what
// a tenant put where a private Service belongs; nothing of what it says counts.
func TestAnUnsignedPrivateServiceIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(*corev1.Service){
		"headless":        func(*corev1.Service) {},
		"with an address": func(service *corev1.Service) { service.Spec.ClusterIP = "10.96.0.99" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.setDeployment("database", 0, 0)
			unsigned := forgedService(t, resources.PrivateServiceName("cart"), "cart")
			make(unsigned)
			c.create(unsigned)
			c.create(cartElastiService())
			c.start()
			c.eventually(func() string {
				found, err := c.host.CoreV1().Services(shop).Get(t.Context(), unsigned.Name, metav1.GetOptions{})
				switch {
				case err != nil:
					return err.Error()
				case !c.options.Signer.Made(&found.ObjectMeta):
					return "a signature"
				case found.Spec.ClusterIP != corev1.ClusterIPNone || found.Spec.PublishNotReadyAddresses || found.Spec.Selector["app"] != "cart":
					return fmt.Sprintf("a private Service as it should be: %+v", found.Spec)
				}
				return ""
			})
			if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
				t.Errorf("the database was scaled to %d", replicas)
			}

			// It is deleted with its ElastiService, also if that was never worked on.
			c.markDeleted("cart", 0)
			c.eventually(func() string {
				if names := c.serviceNames(); slices.Contains(names, unsigned.Name) {
					return fmt.Sprintf("that the private Service is deleted: %v", names)
				}
				return ""
			})
		})
	}
}

// Slices that tenants label themselves are slices like others: their endpoints
// count, and they stay.
func TestForgedResolverSlicesAreIgnored(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "mine", Labels: map[string]string{
			discoveryv1.LabelServiceName: "cart", discoveryv1.LabelManagedBy: v1alpha1.SliceManagedBy, v1alpha1.LabelRole: v1alpha1.RoleResolver,
		}, Annotations: map[string]string{v1alpha1.AnnotationOwner: "deleted"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.7.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	})
	c.setDeployment("cart", 1, 1)
	c.create(cartElastiService())
	stop := c.start()
	c.eventually(func() string {
		if status := c.elastiService("cart").Status; status.Mode != v1alpha1.ModeServe {
			return fmt.Sprintf("mode serve, as there is a ready endpoint: it is %q", status.Mode)
		}
		return ""
	})
	c.settled("late")
	stop()
	_, ctx := ktesting.NewTestContext(t)
	if err := c.teardown().Run(ctx); err != nil {
		t.Error(err)
	}
	if left := c.resolverSlices("cart"); len(left) != 1 || left[0].Name != "mine" {
		t.Errorf("the slices %v are left, want the tenant's", left)
	}
}

// Proxy ports are claimed, then recorded, then used.
func TestProxyPortsAreClaimedBeforeTheyAreUsed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.claims.Fail(errors.New("the storage takes no writes"), nil)
	c.create(cartElastiService())
	c.start()
	calls := func() string {
		if c.claims.Calls() < 3 {
			return "attempts to claim"
		}
		return ""
	}
	// The claims are read before anything is assigned.
	c.claims.Fail(nil, errors.New("the storage does not respond"))
	c.eventually(calls)
	if status := c.elastiService("cart").Status; len(status.ProxyPorts) > 0 || len(c.resolverSlices("cart")) > 0 {
		t.Errorf("the proxy ports %v are used, and not known to be claimed", status.ProxyPorts)
	}
	c.claims.Fail(nil, nil)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.expectClaimed("cart", 2)
}

// expectClaimed checks that the recorded proxy ports of an ElastiService are its own.
func (c *cluster) expectClaimed(name string, count int) {
	c.t.Helper()
	elastiService, stored := c.elastiService(name), c.claims.Stored()
	if len(elastiService.Status.ProxyPorts) != count {
		c.t.Errorf("the proxy ports are %v, want %d", elastiService.Status.ProxyPorts, count)
	}
	for _, port := range elastiService.Status.ProxyPorts {
		if claim := stored[port.ProxyPort]; claim.Owner.UID != elastiService.UID || claim.Port != port.Port {
			c.t.Errorf("port %d is recorded for %s, and claimed by %+v", port.ProxyPort, name, claim)
		}
	}
}

// A status of an earlier version, which tenants could write, may name the port of
// another tenant: it belongs to the one that has the claim, or else to the oldest.
func TestARecordedProxyPortOfAnotherIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	owner := v1alpha1.ProxyPortOwner{Namespace: "bank", Name: "vault", UID: "vault-uid"}
	c.claims = proxyportstest.New(v1alpha1.ProxyPortClaimSpec{ProxyPort: 10042, Port: 443, Owner: owner})
	c.options.Claims = c.claims
	vault := cartElastiService()
	vault.Namespace, vault.Name, vault.UID, vault.Spec.Service = owner.Namespace, owner.Name, owner.UID, "vault"
	c.create(vault)
	older := cartElastiService()
	older.Name, older.UID, older.Spec.Service = "stock", "stock-uid", "stock"
	older.CreationTimestamp = metav1.Unix(1000, 0)
	older.Status.ProxyPorts = []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10050}}
	stock := cartService()
	stock.Name = "stock"
	c.create(stock)
	c.create(older)
	thief := cartElastiService()
	thief.CreationTimestamp = metav1.Unix(2000, 0)
	thief.Status.ProxyPorts = []v1alpha1.ProxyPort{{Port: 80, ProxyPort: 10042}, {Port: 81, ProxyPort: 10050}}
	c.create(thief)
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	c.eventuallyMode("stock", v1alpha1.ModeProxy)
	c.expectClaimed("cart", 2)
	c.expectClaimed("stock", 2)
	stored := c.claims.Stored()
	if got := stored[10042].Owner; got != owner {
		t.Errorf("port 10042 belongs to %+v, want %+v", got, owner)
	}
	if got := stored[10050].Owner.UID; got != older.UID {
		t.Errorf("port 10050 belongs to %s, want the older of those that recorded it", got)
	}
	ports := map[int32]bool{10042: true}
	for _, name := range []string{"cart", "stock"} {
		for _, port := range c.elastiService(name).Status.ProxyPorts {
			if ports[port.ProxyPort] {
				t.Errorf("port %d has two owners", port.ProxyPort)
			}
			ports[port.ProxyPort] = true
		}
	}
}

// The stored object of one tenant is damaged: lists leave it out, and reading it is an
// error. Without any that can be read, the storage fails, and is waited for.
func TestADamagedElastiServiceDoesNotKeepOthersFromBeingSynced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	damaged := v1alpha1.ProxyPortClaimSpec{ProxyPort: 10050, Port: 80, Owner: v1alpha1.ProxyPortOwner{Namespace: "bank", Name: "damaged", UID: "damaged-uid"}}
	if _, err := c.claims.Claim(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	var gets atomic.Int32
	var serves atomic.Bool
	unreadable := apierrors.NewInternalError(errors.New("its digest does not match its key and data"))
	informerstest.React(&c.elasti.Fake, "get", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() != "damaged" {
			return false, nil, nil
		}
		gets.Add(1)
		return true, nil, unreadable
	})
	informerstest.React(&c.elasti.Fake, "list", "elastiservices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetNamespace() == "bank" && !serves.Load(), nil, unreadable
	})
	c.create(cartElastiService())
	c.start()
	c.eventually(func() string {
		if gets.Load() < 2 {
			return "the owner of the claim is read again while the storage fails"
		}
		return ""
	})
	if mode := c.elastiService("cart").Status.Mode; mode != "" {
		t.Errorf("the mode is %s before it is known which proxy ports have an owner", mode)
	}
	serves.Store(true)
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	if _, kept := c.claims.Stored()[damaged.ProxyPort]; !kept {
		t.Error("the proxy port of the ElastiService that cannot be read was released")
	}
}

// A client that may write EndpointSlices, and neither ElastiServices nor scales, edits what a
// resolver slice records while the resolvers stay in the path.
func TestEditedResolverSliceIsNotSigned(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.setDeployment("database", 0, 0)
	c.create(cartElastiService())
	c.start()
	c.eventuallyMode("cart", v1alpha1.ModeProxy)
	// The deletion waits for a ready endpoint.
	c.markDeleted("cart", 0)
	c.eventuallyReplicas(2)
	edited := c.resolverSlices("cart")[0].DeepCopy()
	edited.Annotations[v1alpha1.AnnotationTarget] = forgedService(t, "", "").Annotations[v1alpha1.AnnotationTarget]
	edited.Endpoints = nil
	c.create(edited)
	c.eventually(func() string {
		for _, slice := range c.resolverSlices("cart") {
			if slice.Name == edited.Name && len(slice.Endpoints) > 0 {
				if c.options.Signer.Made(&slice.ObjectMeta) {
					t.Errorf("the server signed what the client wrote: %v", slice.Annotations)
				}
				return ""
			}
		}
		return "the resolvers in the slice"
	})
	c.setEndpoints(shop, "cart", "10.1.0.1")
	c.eventuallyReleased("cart")
	if replicas := c.scaling.replicas(t, "database"); replicas != 0 {
		t.Errorf("the database was scaled to %d", replicas)
	}
}

// Resolvers connect to what the slices of the private Service list. Those of a Service without
// a selector are whatever a user writes.
func TestOnlyAPrivateServiceOfTheServerIsPublished(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prevent func(*cluster)
		reason  string
	}{
		"another client's": {func(c *cluster) {
			c.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: resources.PrivateServiceName("cart")}})
		}, v1alpha1.ReasonNameTaken},
		"none": {func(c *cluster) {
			informerstest.React(&c.host.Fake, "create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("services"), "cart", errors.New("exceeded quota"))
			})
		}, v1alpha1.ReasonWriteFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			test.prevent(c)
			c.create(cartElastiService())
			c.start()
			c.eventuallyCondition("cart", v1alpha1.ConditionReady, metav1.ConditionFalse, test.reason)
			status := c.elastiService("cart").Status
			if status.PrivateService != "" {
				t.Errorf("resolvers are to connect to what Service %s lists", status.PrivateService)
			}
			// Its proxy ports stay the same nevertheless.
			for range 3 {
				c.sync("cart")
			}
			if after := c.elastiService("cart").Status; !slices.Equal(after.ProxyPorts, status.ProxyPorts) || len(after.ProxyPorts) == 0 {
				t.Errorf("the proxy ports are %v, were %v", after.ProxyPorts, status.ProxyPorts)
			}
		})
	}
}
