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

package installcheck

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	fakeregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/fake"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/controller/informers/informerstest"
	fakeelasti "github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/truefoundry/elasti-apiserver/pkg/installcheck/registration"
)

const namespace = "elasti-system"

// cluster is a fake one with an installation.
type cluster struct {
	host         *fake.Clientset
	registration *fakeregistration.Clientset
	elasti       *fakeelasti.Clientset
	checker      *Checker
}

// newCluster returns a cluster in which everything serves, after change has been applied
// to each of its objects. An object for which it returns false is left out.
func newCluster(t *testing.T, change func(object runtime.Object) bool, further ...runtime.Object) *cluster {
	t.Helper()
	var host, registrations []runtime.Object
	for _, name := range []string{serverName, resolverName} {
		host = append(host, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Generation: 2},
			Spec:       appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
			Status:     appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
		})
	}
	registrations = append(registrations, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: registration.Name},
		Spec:       apiregistrationv1.APIServiceSpec{Service: &apiregistrationv1.ServiceReference{Namespace: namespace, Name: serverName}},
		Status:     apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}},
	})
	kept := func(objects []runtime.Object) []runtime.Object {
		var kept []runtime.Object
		for _, object := range objects {
			if change == nil || change(object) {
				kept = append(kept, object)
			}
		}
		return kept
	}
	c := &cluster{
		host:         fake.NewClientset(append(kept(host), further...)...),
		registration: fakeregistration.NewClientset(kept(registrations)...),
		elasti:       fakeelasti.NewClientset(),
	}
	checker, err := New(Options{Kubernetes: c.host, APIServices: c.registration, Elasti: c.elasti, Namespace: namespace})
	if err != nil {
		t.Fatal(err)
	}
	c.checker = checker
	return c
}

// notAvailable takes the replicas of a Deployment away.
func notAvailable(name string) func(runtime.Object) bool {
	return func(object runtime.Object) bool {
		if deployment, ok := object.(*appsv1.Deployment); ok && deployment.Name == name {
			deployment.Status.AvailableReplicas = 0
		}
		return true
	}
}

// unavailable gives the APIService a condition.
func unavailable(reason, message string) func(runtime.Object) bool {
	return func(object runtime.Object) bool {
		if apiService, ok := object.(*apiregistrationv1.APIService); ok {
			apiService.Status.Conditions[0].Status = apiregistrationv1.ConditionFalse
			apiService.Status.Conditions[0].Reason, apiService.Status.Conditions[0].Message = reason, message
		}
		return true
	}
}

// toService has the APIService lead elsewhere.
func toService(service *apiregistrationv1.ServiceReference) func(runtime.Object) bool {
	return func(object runtime.Object) bool {
		if apiService, ok := object.(*apiregistrationv1.APIService); ok {
			apiService.Spec.Service = service
		}
		return true
	}
}

func without[T runtime.Object]() func(runtime.Object) bool {
	return func(object runtime.Object) bool {
		_, is := object.(T)
		return !is
	}
}

// pod returns one of a Deployment.
func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name + "-1", Namespace: namespace, Labels: map[string]string{registration.NameLabel: name}}}
	change(pod)
	return pod
}

func container(status corev1.ContainerStatus) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.ContainerStatuses = []corev1.ContainerStatus{status} }
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func unscheduled(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available: 1 Too many pods."}}
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: serverName}}}}
}

func TestWhatServesHasNoProblem(t *testing.T) {
	if problems := newCluster(t, nil).checker.Check(t.Context()); len(problems) > 0 {
		t.Errorf("got %q, want no problem", problems)
	}
}

// Each problem says what is wrong, and what to do.
func TestProblemsSayWhatToDo(t *testing.T) {
	for _, test := range []struct {
		name     string
		change   func(runtime.Object) bool
		further  []runtime.Object
		what, do string
	}{
		{"no Deployment", without[*appsv1.Deployment](), nil,
			"There is no Deployment elasti-apiserver in the namespace elasti-system", "Apply the manifests again"},
		{"scaled to zero", func(object runtime.Object) bool {
			if deployment, ok := object.(*appsv1.Deployment); ok {
				deployment.Spec.Replicas = ptr.To[int32](0)
			}
			return true
		}, nil, "The Deployment elasti-apiserver has no replicas", "Scale it up"},
		{"an image that is not there", notAvailable(resolverName),
			[]runtime.Object{pod(resolverName, container(corev1.ContainerStatus{Image: "elasti-resolver:v1", State: waiting("ImagePullBackOff", "not found.")}))},
			"The image elasti-resolver:v1 of elasti-resolver cannot be pulled (ImagePullBackOff): not found", "global.image.registry"},
		{"a Secret that is not there", notAvailable(serverName),
			[]runtime.Object{pod(serverName, container(corev1.ContainerStatus{State: waiting("CreateContainerConfigError", "secret \"elasti-apiserver-etcd\" not found")}))},
			"secret \"elasti-apiserver-etcd\" not found", "Create what the container refers to"},
		{"a crash", notAvailable(serverName),
			[]runtime.Object{pod(serverName, container(corev1.ContainerStatus{RestartCount: 3, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}, State: waiting("CrashLoopBackOff", "back-off")}))},
			"exited with code 1 (Error)", "kubectl logs --namespace elasti-system deployment/elasti-apiserver --previous"},
		{"no node", notAvailable(serverName), []runtime.Object{pod(serverName, unscheduled)},
			"No node fits a pod of elasti-apiserver: 0/1 nodes are available", "change the resources"},
		{"no StorageClass", notAvailable(serverName), []runtime.Object{pod(serverName, unscheduled), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: serverName, Namespace: namespace}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}},
			"The PersistentVolumeClaim elasti-apiserver has no volume: its StorageClass is the default one", "storage.embedded.storageClassName"},
		{"pods that are rejected", func(object runtime.Object) bool {
			if deployment, ok := object.(*appsv1.Deployment); ok && deployment.Name == resolverName {
				deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "violates PodSecurity \"restricted:latest\""}}}
			}
			return true
		}, nil, "The cluster rejects the pods of elasti-resolver: violates PodSecurity", "a Pod Security Standard"},
		{"not ready for another reason", notAvailable(serverName), nil,
			"The Deployment elasti-apiserver has 0 of 2 replicas available", "kubectl describe pods --namespace elasti-system --selector app.kubernetes.io/name=elasti-apiserver"},
		{"an old replica", func(object runtime.Object) bool {
			if deployment, ok := object.(*appsv1.Deployment); ok && deployment.Name == serverName {
				deployment.Status.UpdatedReplicas = 1
			}
			return true
		}, nil, "The Deployment elasti-apiserver", "kubectl logs"},
		{"no APIService", without[*apiregistrationv1.APIService](), nil,
			"There is no APIService v1alpha1.elasti.truefoundry.com", "apiService.create"},
		{"KubeElasti is installed", toService(nil), nil,
			"belongs to a CustomResourceDefinition, as KubeElasti has one", "uninstall KubeElasti"},
		{"another installation", toService(&apiregistrationv1.ServiceReference{Namespace: "other", Name: serverName}), nil,
			"leads to the Service other/elasti-apiserver of another installation", "Uninstall the other one"},
		{"no Service", unavailable("ServiceNotFound", "service/elasti-apiserver in \"elasti-system\" is not present"), nil,
			"is not present", "Apply the manifests again"},
		{"no ready pod", unavailable("MissingEndpoints", "endpoints for service/elasti-apiserver in \"elasti-system\" have no addresses with port name \"\""), nil,
			"MissingEndpoints", "kubectl describe pods"},
		{"another authority", unavailable("FailedDiscoveryCheck", "failing or missing response from https://10.0.0.1:8443: tls: failed to verify certificate: x509: certificate signed by unknown authority"), nil,
			"x509", "tls.existingSecret.caBundle"},
		{"not accepted", unavailable("FailedDiscoveryCheck", "bad status from https://10.0.0.1:8443: 403"), nil,
			"403", "extension-apiserver-authentication"},
		{"a port that is not reached", unavailable("FailedDiscoveryCheck", "failing or missing response from https://10.0.0.1:8443: context deadline exceeded"), nil,
			"The API server of the cluster does not reach elasti-apiserver (FailedDiscoveryCheck)", "elastiController.hostNetwork.enabled"},
		{"no aggregation layer", func(object runtime.Object) bool {
			if apiService, ok := object.(*apiregistrationv1.APIService); ok {
				apiService.Status.Conditions = nil
			}
			return true
		}, nil, "has not yet tried to reach elasti-apiserver", "--requestheader-client-ca-file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			problems := newCluster(t, test.change, test.further...).checker.Check(t.Context())
			if len(problems) == 0 {
				t.Fatal("no problem is found")
			}
			if first := problems[0]; !strings.Contains(first.What, test.what) || !strings.Contains(first.Do, test.do) {
				t.Errorf("got %q, want %q and %q", first, test.what, test.do)
			}
			for _, problem := range problems {
				if text := problem.Error(); strings.Contains(text, "..") || !strings.HasSuffix(text, ".") {
					t.Errorf("%q is not two sentences", text)
				}
			}
		})
	}
}

func TestListThatFailsIsAProblem(t *testing.T) {
	c := newCluster(t, nil)
	informerstest.React(&c.elasti.Fake, "list", "elastiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "list", schema.GroupResource{}, "", "", 0, true)
	})
	problems := c.checker.Check(t.Context())
	if len(problems) != 1 || !strings.Contains(problems[0].What, "Listing ElastiServices fails") {
		t.Errorf("got %q, want that the list fails", problems)
	}
}

func TestMissingPermissionOfTheCheckIsAProblem(t *testing.T) {
	c := newCluster(t, nil)
	informerstest.React(&c.host.Fake, "get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, serverName, nil)
	})
	problems := c.checker.Check(t.Context())
	if len(problems) != 2 || !strings.Contains(problems[0].Do, "elasti-check") {
		t.Errorf("got %q, want that both Deployments cannot be read", problems)
	}
}

// What starts is not ready at once.
func TestAwaitEndsWhenNoProblemIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, notAvailable(serverName))
		ended := make(chan []Problem, 1)
		go func() { ended <- c.checker.Await(t.Context(), time.Minute) }()
		synctest.Wait()
		select {
		case problems := <-ended:
			t.Fatalf("it ended with %q before the timeout", problems)
		default:
		}
		deployment, err := c.host.AppsV1().Deployments(namespace).Get(t.Context(), serverName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		deployment.Status.AvailableReplicas = 2
		if _, err := c.host.AppsV1().Deployments(namespace).UpdateStatus(t.Context(), deployment, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if problems := <-ended; len(problems) > 0 {
			t.Errorf("it ended with %q", problems)
		}
	})
}

func TestAwaitReportsTheLastProblems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		problems := newCluster(t, notAvailable(serverName)).checker.Await(t.Context(), time.Minute)
		if len(problems) != 1 || time.Since(started) < time.Minute {
			t.Errorf("got %q after %s, want one problem after a minute", problems, time.Since(started))
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if problems := newCluster(t, notAvailable(serverName)).checker.Await(ctx, time.Hour); len(problems) == 0 {
		t.Error("the problems are lost")
	}
}
