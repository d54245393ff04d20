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
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	elastiinformers "github.com/truefoundry/elasti-apiserver/pkg/generated/informers/externalversions"
)

var elastiServicesResource = v1alpha1.SchemeGroupVersion.WithResource("elastiservices")

// A client without the types of the API works with it as with any other.
func TestDynamicClientDoesEverything(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	dynamicClient, err := dynamic.NewForConfig(shared.Admin)
	if err != nil {
		t.Fatal(err)
	}
	client := dynamicClient.Resource(elastiServicesResource).Namespace(namespace)
	watcher, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watcher.Stop()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "elasti.truefoundry.com/v1alpha1",
		"kind":       "ElastiService",
		"metadata":   map[string]any{"name": "app", "labels": map[string]any{"team": "a"}},
		"spec": map[string]any{
			"service":        "app",
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "app"},
			"triggers": []any{map[string]any{
				"type":     "prometheus",
				"metadata": map[string]any{"query": "up", "serverAddress": "http://prometheus", "threshold": "1", "more": map[string]any{"unknown": int64(1)}},
			}},
		},
	}}
	if _, err := client.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	read, err := client.Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	triggers, _, err := unstructured.NestedSlice(read.Object, "spec", "triggers")
	if err != nil || len(triggers) != 1 {
		t.Fatalf("the triggers are %v (error: %v)", triggers, err)
	}
	if unknown, _, err := unstructured.NestedInt64(triggers[0].(map[string]any), "metadata", "more", "unknown"); err != nil || unknown != 1 {
		t.Errorf("the metadata of the trigger has lost a field: %v (error: %v)", triggers[0], err)
	}
	patched, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"spec":{"cooldownPeriod":61}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("patching: %v", err)
	}
	if cooldown, _, _ := unstructured.NestedInt64(patched.Object, "spec", "cooldownPeriod"); cooldown != 61 {
		t.Errorf("the cooldown is %d after a patch, want 61", cooldown)
	}
	list, err := client.List(t.Context(), metav1.ListOptions{LabelSelector: "team=a"})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "ElastiServiceList" {
		t.Errorf("listing finds %d objects in a %s (error: %v), want 1", len(list.Items), list.GetKind(), err)
	}
	scale, err := client.Get(t.Context(), "app", metav1.GetOptions{}, "scale")
	if err != nil || scale.GetKind() != "Scale" || scale.GetAPIVersion() != "autoscaling/v1" {
		t.Errorf("the scale is %v (error: %v)", scale, err)
	}
	request := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "elasti.truefoundry.com/v1alpha1", "kind": "WakeRequest", "metadata": map[string]any{"name": "app"}}}
	woken, err := client.Create(t.Context(), request, metav1.CreateOptions{}, "wake")
	if err != nil {
		t.Fatalf("waking: %v", err)
	}
	if scaled, _, _ := unstructured.NestedBool(woken.Object, "status", "scaled"); !scaled {
		t.Errorf("the wake returns %v, want scaled", woken.Object)
	}
	// A deletion waits until the target serves.
	setReady(t, namespace, runPod(t, namespace, "app"), true)
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	seen := map[watch.EventType]bool{}
	eventually(t, "the watch has seen all", func(context.Context) string {
		select {
		case event := <-watcher.ResultChan():
			seen[event.Type] = true
		default:
		}
		for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			if !seen[kind] {
				return fmt.Sprintf("it has seen %v", slices.Collect(maps.Keys(seen)))
			}
		}
		return ""
	})
}

// The collectors of kube-controller-manager read, watch and delete metadata,
// and prefer protobuf.
func TestMetadataClientThatPrefersProtobufWorks(t *testing.T) {
	namespace := newNamespace(t)
	metadataClient, err := metadata.NewForConfig(metadata.ConfigFor(shared.Admin))
	if err != nil {
		t.Fatal(err)
	}
	client := metadataClient.Resource(elastiServicesResource).Namespace(namespace)
	watcher, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("watching: %v", err)
	}
	defer watcher.Stop()
	created := createElastiService(t, namespace, newElastiService("app"))
	select {
	case event := <-watcher.ResultChan():
		if object, ok := event.Object.(*metav1.PartialObjectMetadata); !ok || event.Type != watch.Added || object.UID != created.UID {
			t.Errorf("the first event is %+v", event)
		}
	case <-t.Context().Done():
		t.Fatal("no event has come")
	}
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].UID != created.UID {
		t.Errorf("listing returns %+v (error: %v)", list, err)
	}
	patched, err := client.Patch(t.Context(), "app", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`), metav1.PatchOptions{})
	if err != nil || patched.Labels["team"] != "a" {
		t.Errorf("patching returns %+v (error: %v)", patched, err)
	}
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &created.UID}}); err != nil {
		t.Errorf("deleting: %v", err)
	}
}

// The generated informers begin with a watch that streams the list.
func TestInformersFollowEveryObject(t *testing.T) {
	namespace := newNamespace(t)
	createElastiService(t, namespace, newElastiService("app"))
	factory := elastiinformers.NewSharedInformerFactoryWithOptions(shared.Elasti, 0, elastiinformers.WithNamespace(namespace))
	informer := factory.Elasti().V1alpha1().ElastiServices()
	lister := informer.Lister().ElastiServices(namespace)
	synced := informer.Informer().HasSynced
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		t.Fatal("the informer has not synced")
	}
	if _, err := lister.Get("app"); err != nil {
		t.Errorf("the list has not the object: %v", err)
	}
	if err := elastiServices(namespace).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lister has it no more", func(context.Context) string {
		if _, err := lister.Get("app"); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("it returns %v", err)
		}
		return ""
	})
}

func TestBodiesAreReadAsStrictlyAsRequested(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	createElastiService(t, namespace, newElastiService("app"))
	seen := &warnings{}
	config := rest.CopyConfig(shared.Admin)
	config.WarningHandler = seen
	client := elastiClient(t, config).ElastiV1alpha1().RESTClient()
	const (
		unknown    = `{"spec":{"reasn":"a typing error"}}`
		duplicated = `{"spec":{"reason":"a","reason":"b"}}`
	)
	for _, test := range []struct {
		validation, body, complaint string
		denied                      bool
	}{
		{metav1.FieldValidationStrict, unknown, `unknown field "spec.reasn"`, true},
		{metav1.FieldValidationStrict, duplicated, `duplicate field "spec.reason"`, true},
		{metav1.FieldValidationWarn, unknown, `unknown field "spec.reasn"`, false},
		{metav1.FieldValidationWarn, duplicated, `duplicate field "spec.reason"`, false},
		{metav1.FieldValidationIgnore, unknown, "", false},
	} {
		code := 0
		err := client.Post().AbsPath(wakePath(namespace, "app")).Param("fieldValidation", test.validation).Param("dryRun", metav1.DryRunAll).
			SetHeader("Content-Type", "application/json").Body([]byte(test.body)).Do(t.Context()).StatusCode(&code).Error()
		warned := seen.take()
		switch {
		case test.denied && (code != http.StatusBadRequest || !strings.Contains(err.Error(), test.complaint)):
			t.Errorf("%s of %s returns %d: %v, want it to say %s", test.validation, test.body, code, err, test.complaint)
		case !test.denied && (err != nil || !strings.Contains(warned, test.complaint)):
			t.Errorf("%s of %s returns %v and warns %q, want the warning %q", test.validation, test.body, err, warned, test.complaint)
		}
	}
}

func TestServerSideApplyOfTheScale(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 1)
	createElastiService(t, namespace, newElastiService("app"))
	apply := fmt.Appendf(nil, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"app","namespace":%q},"spec":{"replicas":3}}`, namespace)
	err := shared.Elasti.ElastiV1alpha1().RESTClient().Patch(types.ApplyPatchType).Namespace(namespace).Resource("elastiservices").Name("app").SubResource("scale").
		VersionedParams(&metav1.PatchOptions{FieldManager: "team", Force: ptr.To(true)}, metav1.ParameterCodec).Body(apply).Do(t.Context()).Error()
	if err != nil {
		t.Fatalf("applying the scale: %v", err)
	}
	if replicas := desiredReplicas(t, namespace); replicas != 3 {
		t.Errorf("spec.replicas of the target is %d, want 3", replicas)
	}
	// A client that scales an ElastiService does not become the manager of its fields.
	if fields := ownedFields(readElastiService(t, namespace), "team", "scale"); fields != "" {
		t.Errorf("the client that applied the scale owns %s of the ElastiService", fields)
	}
}
