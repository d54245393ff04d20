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

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
)

// newMember returns the client configuration of a new ServiceAccount with a ClusterRole,
// such as admin, in its namespace.
func newMember(t *testing.T, namespace, role string) *rest.Config {
	t.Helper()
	config := newServiceAccount(t, namespace, role)
	bindRole(t, namespace, role, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, config)
	return config
}

// The permission to wake does not include the permission to set the number of replicas.
func TestAWakeOfThoseThatMayOnlyWakeIsBounded(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	object := newElastiService("app")
	object.Spec.MinTargetReplicas = ptr.To[int32](2)
	createElastiService(t, namespace, object)
	waker := elastiClient(t, newServiceAccount(t, namespace, "waker", mayWake)).ElastiV1alpha1().ElastiServices(namespace)
	editor := elastiClient(t, newMember(t, namespace, "edit")).ElastiV1alpha1().ElastiServices(namespace)
	wakeTo := func(replicas int32) *v1alpha1.WakeRequest {
		return &v1alpha1.WakeRequest{Spec: v1alpha1.WakeRequestSpec{Replicas: ptr.To(replicas)}}
	}

	for _, replicas := range []int32{3, 100_000} {
		_, err := waker.Wake(t.Context(), "app", wakeTo(replicas), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may update elastiservices/scale") {
			t.Errorf("waking to %d replicas returns %v, want an error that names the permission", replicas, err)
		}
	}
	if replicas := desiredReplicas(t, namespace); replicas != 0 {
		t.Errorf("spec.replicas of the target is %d after forbidden wakes, want 0", replicas)
	}
	if woken, err := waker.Wake(t.Context(), "app", wakeTo(2), metav1.CreateOptions{}); err != nil || woken.Status.Replicas != 2 {
		t.Errorf("waking to minTargetReplicas returns %+v (%v), want 2 replicas", woken, err)
	}
	if woken, err := editor.Wake(t.Context(), "app", wakeTo(3), metav1.CreateOptions{}); err != nil || woken.Status.Replicas != 3 {
		t.Errorf("waking to 3 replicas with the permission to scale returns %+v (%v), want 3", woken, err)
	}
}

// A value of a wrong type is rejected with the path of its field, in every kind of request.
func TestTypeErrorsNameTheField(t *testing.T) {
	namespace := newNamespace(t)
	kubectl := newKubectl(t, namespace)
	manifest := func(cooldown string) string {
		return fmt.Sprintf(`apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata: {name: app}
spec:
  service: app
  cooldownPeriod: %s
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: app}
`, cooldown)
	}
	if _, err := kubectl.Run(t.Context(), manifest("5"), "apply", "--filename=-"); err != nil {
		t.Fatal(err)
	}
	for _, typed := range []string{
		"apply --filename=-",
		"apply --server-side --force-conflicts --filename=-",
		"replace --filename=-",
		`patch elastiservice app --type=merge --patch={"spec":{"cooldownPeriod":"5"}}`,
		`patch elastiservice app --type=strategic --patch={"spec":{"cooldownPeriod":"5"}}`,
		`patch elastiservice app --type=json --patch=[{"op":"replace","path":"/spec/cooldownPeriod","value":"5"}]`,
	} {
		arguments := append(strings.Fields(typed), "--validate=false")
		if strings.HasPrefix(typed, "patch") {
			arguments = strings.Fields(typed)
		}
		_, err := kubectl.Run(t.Context(), manifest(`"5"`), arguments...)
		if err == nil || !strings.Contains(err.Error(), "spec.cooldownPeriod") || strings.Contains(err.Error(), "map[") || strings.Contains(err.Error(), "unrecognized type") {
			t.Errorf("kubectl %s returns %v, want an error that names spec.cooldownPeriod and does not repeat the patch", typed, err)
		}
	}
}

// A few bytes of YAML that take any amount of memory when their aliases are written out are
// rejected before that, in every kind of request and for callers that may do little.
func TestYAMLAliasesAreBounded(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	expand := func(field string) []byte {
		return []byte(field + ": &a " + strings.Repeat("x", 1<<10) + "\nmore: [" + strings.Repeat("*a,", 8<<10) + "]\n")
	}
	waker := elastiClient(t, newServiceAccount(t, namespace, "waker", mayWake)).ElastiV1alpha1().RESTClient()
	admin := elastiClient(t, shared.Admin).ElastiV1alpha1().RESTClient()
	for name, request := range map[string]*rest.Request{
		"a wake":     waker.Post().Name("app").SubResource("wake").Body(expand("kind")).SetHeader("Content-Type", "application/yaml"),
		"a creation": admin.Post().Body(expand("kind")).SetHeader("Content-Type", "application/yaml"),
		"an apply":   admin.Patch(types.ApplyYAMLPatchType).Name("app").Param("fieldManager", "team").Body(expand("kind")),
	} {
		if err := request.Namespace(namespace).Resource("elastiservices").Do(t.Context()).Error(); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s returns %v, want an error that says that it is too large", name, err)
		}
	}
}

// A key of a trigger that is misspelled is warned about, at the first write and at
// each that changes the spec.
func TestAMisspelledKeyOfATriggerIsWarnedAbout(t *testing.T) {
	namespace := newNamespace(t)
	seen := &warnings{}
	config := rest.CopyConfig(shared.Admin)
	config.WarningHandler = seen
	client := elastiClient(t, config).ElastiV1alpha1().ElastiServices(namespace)
	expectWarning := func(what string, err error) {
		t.Helper()
		if texts := seen.take(); err != nil || !strings.Contains(texts, "spec.triggers[0].metadata.serverAdress") || !strings.Contains(texts, "serverAddress") {
			t.Errorf("%s warns %q (%v), want the misspelled key and the right ones", what, texts, err)
		}
	}
	object := newElastiService("app")
	object.Spec.Triggers = []v1alpha1.ScaleTrigger{prometheusTrigger(`{"query":"up","threshold":1,"serverAdress":"http://prometheus:9090"}`)}
	_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	expectWarning("creating", err)
	_, err = client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{})
	expectWarning("patching", err)
	apply := []byte(`{"apiVersion":"elasti.truefoundry.com/v1alpha1","kind":"ElastiService","spec":{"cooldownPeriod":70}}`)
	_, err = client.Patch(t.Context(), "app", types.ApplyYAMLPatchType, apply, metav1.PatchOptions{FieldManager: "team", Force: ptr.To(true)})
	expectWarning("applying", err)
}

// A tenant cannot assign another tenant's proxy port to pods of its own, and cannot change
// other fields that the controller sets and resolvers use. Neither can the administrator of
// a namespace, a user that may write statuses, or the administrator of the cluster.
func TestTenantsCannotWriteWhatResolversActOn(t *testing.T) {
	victim, namespace := newNamespace(t), newNamespace(t)
	for _, name := range []string{victim, namespace} {
		createApplication(t, name, 0)
		createElastiService(t, name, newElastiService("app"))
		waitForCondition(t, name, v1alpha1.ConditionReady, metav1.ConditionTrue)
		waitForMode(t, name, v1alpha1.ModeProxy)
		waitForCondition(t, name, v1alpha1.ConditionSleeping, metav1.ConditionTrue)
	}
	stolen := readElastiService(t, victim).Status.ProxyPorts[0].ProxyPort
	before := readElastiService(t, namespace)
	mayWriteStatuses := rbacv1.PolicyRule{
		APIGroups: []string{"elasti.truefoundry.com"}, Resources: []string{"elastiservices", "elastiservices/status"},
		Verbs: []string{"get", "update", "patch"},
	}
	for user, config := range map[string]*rest.Config{
		"admin of the namespace":    newMember(t, namespace, "admin"),
		"with a role for statuses":  newServiceAccount(t, namespace, "statuses", mayWriteStatuses),
		"administrator of clusters": shared.Admin,
	} {
		client := elastiClient(t, config).ElastiV1alpha1()
		for field, forge := range map[string]func(*v1alpha1.ElastiServiceStatus){
			"proxyPorts":     func(status *v1alpha1.ElastiServiceStatus) { status.ProxyPorts[0].ProxyPort = stolen },
			"privateService": func(status *v1alpha1.ElastiServiceStatus) { status.PrivateService = "database" },
			"managedTarget":  func(status *v1alpha1.ElastiServiceStatus) { status.ManagedTarget.ScaleTargetRef.Name = "database" },
			"sleepRequestedTime": func(status *v1alpha1.ElastiServiceStatus) {
				status.SleepRequestedTime = ptr.To(metav1.Now().Rfc3339Copy())
			},
		} {
			forged := before.DeepCopy()
			forge(&forged.Status)
			for verb, write := range statusWrites(t, client.RESTClient(), forged) {
				code := 0
				err := write("status", &code)
				switch {
				case user == "admin of the namespace" && !apierrors.IsForbidden(err):
					t.Errorf("%s of status.%s by the %s returns %v, want forbidden", verb, field, user, err)
				case user != "admin of the namespace" && (code != http.StatusUnprocessableEntity || !strings.Contains(err.Error(), "status."+field+": Forbidden")):
					t.Errorf("%s of status.%s by the %s returns %d: %v, want an error that names the field", verb, field, user, code, err)
				}
				if err := write("", &code); err != nil {
					t.Errorf("%s of the object by the %s, with a forged status.%s, returns %v", verb, user, field, err)
				}
			}
		}
	}
	// None of the writes has changed the status.
	after := readElastiService(t, namespace)
	if !apiequality.Semantic.DeepEqual(after.Status, before.Status) {
		t.Errorf("the status is %+v, was %+v", after.Status, before.Status)
	}
}

// statusWrites are the ways to write the status of an ElastiService through the
// object and through a subresource.
func statusWrites(t *testing.T, client rest.Interface, object *v1alpha1.ElastiService) map[string]func(subresource string, code *int) error {
	t.Helper()
	encode := func(value any) []byte {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	send := func(request *rest.Request, body any) func(string, *int) error {
		encoded := encode(body)
		return func(subresource string, code *int) error {
			path := []string{groupPath + "/v1alpha1/namespaces", object.Namespace, "elastiservices", object.Name}
			if subresource != "" {
				path = append(path, subresource)
			}
			return request.AbsPath(path...).Body(encoded).Do(t.Context()).StatusCode(code).Error()
		}
	}
	put := object.DeepCopy()
	put.APIVersion, put.Kind, put.ResourceVersion = "elasti.truefoundry.com/v1alpha1", "ElastiService", ""
	status := map[string]any{"status": object.Status}
	unowned := map[string]any{"metadata": map[string]any{"managedFields": []map[string]any{{}}}, "status": object.Status}
	applied := map[string]any{"apiVersion": put.APIVersion, "kind": put.Kind, "status": object.Status}
	return map[string]func(string, *int) error{
		"PUT":                          send(client.Put(), put),
		"merge patch":                  send(client.Patch(types.MergePatchType), status),
		"merge patch of its ownership": send(client.Patch(types.MergePatchType), unowned),
		"strategic merge patch":        send(client.Patch(types.StrategicMergePatchType), status),
		"JSON patch":                   send(client.Patch(types.JSONPatchType), []map[string]any{{"op": "add", "path": "/status", "value": object.Status}}),
		"server-side apply":            send(client.Patch(types.ApplyYAMLPatchType).Param("fieldManager", "tenant").Param("force", "true"), applied),
	}
}

// Resolvers report activity, and tenants do not: neither to keep an application
// awake nor to have it put to sleep.
func TestTenantsMayNeitherReportActivityNorWriteStatuses(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	may := func(config *rest.Config, verb, subresource string) bool {
		t.Helper()
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: "elasti.truefoundry.com", Resource: "elastiservices", Subresource: subresource, Name: "app",
		}}}
		response, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return response.Status.Allowed
	}
	for _, role := range []string{"admin", "edit", "view"} {
		config := newMember(t, namespace, role)
		if role != "view" && !may(config, "create", "wake") {
			t.Errorf("the role %s may not wake", role)
		}
		for verb, subresource := range map[string]string{"create": "activity", "update": "status", "patch": "status"} {
			if may(config, verb, subresource) {
				t.Errorf("the role %s may %s elastiservices/%s", role, verb, subresource)
			}
		}
		report := &v1alpha1.ActivityReport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: v1alpha1.ActivityReportSpec{Resolver: "mine", Open: 1}}
		if _, err := elastiClient(t, config).ElastiV1alpha1().ElastiServices(namespace).ReportActivity(t.Context(), "app", report, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a report of activity by the role %s returns %v, want forbidden", role, err)
		}
	}
}

// Claims of proxy ports are stored, and not part of the API.
func TestClaimsOfProxyPortsAreNotServed(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	for _, path := range []string{groupPath + "/v1alpha1", "/openapi/v2", "/openapi/v3" + groupPath + "/v1alpha1"} {
		content, err := shared.Kubernetes.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// The documents of the host cluster have the kind that stores them, if any.
		published := strings.ReplaceAll(strings.ToLower(string(content)), "storedproxyportclaim", "")
		if strings.Contains(published, "proxyportclaim") {
			t.Errorf("%s contains the claims of proxy ports", path)
		}
	}
	for _, path := range []string{"/proxyportclaims", "/proxyportclaims/10000", "/namespaces/" + namespace + "/proxyportclaims"} {
		if err := shared.Elasti.ElastiV1alpha1().RESTClient().Get().AbsPath(groupPath + "/v1alpha1" + path).Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
			t.Errorf("reading %s returns %v, want not found", path, err)
		}
	}
}

// A tenant that may write Services and may not scale cannot have a workload scaled by a
// Service that looks like a private Service.
func TestAForgedPrivateServiceScalesNothing(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	database := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "database"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "database"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "database"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "database", Image: "database"}}},
			},
		},
	}
	if _, err := shared.Kubernetes.AppsV1().Deployments(namespace).Create(t.Context(), database, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mayWriteServices := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get", "list", "create", "update", "delete"}}
	tenant, err := kubernetes.NewForConfig(newServiceAccount(t, namespace, "tenant", mayWriteServices))
	if err != nil {
		t.Fatal(err)
	}
	services := tenant.CoreV1().Services(namespace)
	private, err := services.Get(t.Context(), readElastiService(t, namespace).Status.PrivateService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const managed = `{"target":{"apiVersion":"apps/v1","kind":"Deployment","name":"database"},"minTargetReplicas":5}`
	for name, owner := range map[string]string{"forged": "app", "orphan": "deleted"} {
		forged := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: private.Labels, Annotations: map[string]string{}}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: private.Spec.Ports}}
		for key, value := range private.Annotations {
			forged.Annotations[key] = value
		}
		forged.Annotations[v1alpha1.AnnotationOwner], forged.Annotations[v1alpha1.AnnotationTarget] = owner, managed
		if _, err := services.Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// And the Service of the server itself.
	signed := private.Annotations[v1alpha1.AnnotationSignature]
	edited := private.DeepCopy()
	edited.Annotations[v1alpha1.AnnotationTarget] = managed
	if _, err := services.Update(t.Context(), edited, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the private Service is as it was", func(ctx context.Context) string {
		found, err := services.Get(ctx, private.Name, metav1.GetOptions{})
		if err != nil || found.UID != private.UID || found.Annotations[v1alpha1.AnnotationSignature] != signed || found.Annotations[v1alpha1.AnnotationTarget] == managed {
			return fmt.Sprintf("it is %+v (%v)", found.ObjectMeta, err)
		}
		return ""
	})
	if _, err := elastiServices(namespace).Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":60}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the controller has seen the change", func(context.Context) string {
		object := readElastiService(t, namespace)
		if object.Status.ObservedGeneration != object.Generation {
			return fmt.Sprintf("it has seen generation %d of %d", object.Status.ObservedGeneration, object.Generation)
		}
		return ""
	})
	found, err := shared.Kubernetes.AppsV1().Deployments(namespace).Get(t.Context(), "database", metav1.GetOptions{})
	if err != nil || *found.Spec.Replicas != 0 {
		t.Errorf("the database has %d replicas (%v), want 0", *found.Spec.Replicas, err)
	}
	for _, name := range []string{"forged", "orphan"} {
		if _, err := services.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("the tenant's Service %s: %v, want it left alone", name, err)
		}
	}
}

// A private Service of an earlier version is signed in place instead of being created
// again, because resolvers use its EndpointSlices.
func TestAnUnsignedPrivateServiceIsSignedInPlace(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	services := shared.Kubernetes.CoreV1().Services(namespace)
	private, err := services.Get(t.Context(), readElastiService(t, namespace).Status.PrivateService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationSignature)
	unsigned, err := services.Patch(t.Context(), private.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is signed again", func(ctx context.Context) string {
		found, err := services.Get(ctx, private.Name, metav1.GetOptions{})
		if err != nil || found.UID != unsigned.UID || found.Annotations[v1alpha1.AnnotationSignature] != private.Annotations[v1alpha1.AnnotationSignature] {
			return fmt.Sprintf("it is %+v (%v)", found.ObjectMeta, err)
		}
		return ""
	})
}

// The API server clears the addresses of a Service that a user makes an ExternalName, and
// accepts no IP families of it: it cannot be changed back by what it is to be.
func TestAPrivateServiceThatATenantMakesAnExternalNameIsMadeAgain(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	waitForMode(t, namespace, v1alpha1.ModeProxy)
	tenant, err := kubernetes.NewForConfig(newMember(t, namespace, "edit"))
	if err != nil {
		t.Fatalf("making a client: %v", err)
	}
	services := tenant.CoreV1().Services(namespace)
	private, err := services.Get(t.Context(), readElastiService(t, namespace).Status.PrivateService, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the private Service: %v", err)
	}
	external := []byte(`{"spec":{"type":"ExternalName","externalName":"x.example"}}`)
	if _, err := services.Patch(t.Context(), private.Name, types.MergePatchType, external, metav1.PatchOptions{}); err != nil {
		t.Fatalf("making the private Service an ExternalName: %v", err)
	}
	eventually(t, "the private Service is another one, as it was", func(ctx context.Context) string {
		found, err := services.Get(ctx, private.Name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if found.UID == private.UID || !apiequality.Semantic.DeepEqual(found.Spec, private.Spec) {
			return fmt.Sprintf("it is %+v", found.Spec)
		}
		return ""
	})
}

// No proxy port is assigned to two Services, also while a previous leader may still be
// running.
func TestReplicasGiveNoProxyPortTwice(t *testing.T) {
	const elastiServiceCount, rounds = 30, 3
	replicas := startReplicas(t)
	leader := waitForLeader(t, replicas[:]...)
	namespace := newNamespace(t)
	for round := range rounds {
		for i := range elastiServiceCount {
			name := fmt.Sprintf("app-%d-%d", round, i)
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: appLabels, Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "admin", Port: 81}}}}
			if _, err := shared.Kubernetes.CoreV1().Services(namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			object := newElastiService(name)
			object.Spec.Service = name
			if _, err := direct(t, replicas[1-leader], namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if i == elastiServiceCount/2 {
				// The leader is killed during a sync.
				replicas[leader].Kill()
				start(t, replicas[leader])
				leader = waitForLeader(t, replicas[:]...)
			}
		}
	}
	var list *v1alpha1.ElastiServiceList
	eventuallyWithin(t, leaseTimeout, "every Service has its proxy ports", func(ctx context.Context) string {
		var err error
		if list, err = direct(t, replicas[leader], namespace).List(ctx, metav1.ListOptions{}); err != nil {
			return err.Error()
		}
		for i := range list.Items {
			if ports := list.Items[i].Status.ProxyPorts; len(ports) != 2 {
				return fmt.Sprintf("%s has the proxy ports %v", list.Items[i].Name, ports)
			}
		}
		return ""
	})
	owners := map[int32]string{}
	for i := range list.Items {
		for _, port := range list.Items[i].Status.ProxyPorts {
			if other, taken := owners[port.ProxyPort]; taken {
				t.Errorf("proxy port %d belongs to %s and to %s", port.ProxyPort, other, list.Items[i].Name)
			}
			owners[port.ProxyPort] = list.Items[i].Name
		}
	}
	if want := 2 * elastiServiceCount * rounds; len(owners) != want {
		t.Errorf("%d proxy ports are in use, want %d", len(owners), want)
	}
}
