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
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/truefoundry/elasti-apiserver/pkg/apis/elasti/v1alpha1"
	"github.com/truefoundry/elasti-apiserver/test/certificates"
)

// webhook is an admission webhook that records its requests. It denies objects with the
// annotation "deny", and labels ElastiServices when it is a mutating one.
type webhook struct {
	// url and authority are the values for the webhook configuration.
	url       string
	authority []byte

	mu sync.Mutex
	// calls counts requests by path, operation and resource.
	calls map[string]int
}

// startWebhook serves until the test has ended.
func startWebhook(t *testing.T) *webhook {
	t.Helper()
	port, err := shared.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	authority := certificates.NewAuthority("webhook", certificates.ECDSA)
	issued := authority.Issue(x509.Certificate{IPAddresses: []net.IP{net.ParseIP(shared.Server.Address)}})
	pair, err := tls.X509KeyPair(issued.CertificatePEM, issued.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(shared.Server.Address, strconv.Itoa(port))
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	hook := &webhook{url: "https://" + address, authority: authority.PEM(), calls: map[string]int{}}
	server := &http.Server{
		Handler:           hook,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: waitTimeout,
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.ServeTLS(listener, "", ""); err != http.ErrServerClosed {
			t.Errorf("serving the webhook: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return hook
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(req.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("this is no admission review: %v", err), http.StatusBadRequest)
		return
	}
	request := review.Request
	resource := request.Resource.Resource
	if request.SubResource != "" {
		resource += "/" + request.SubResource
	}
	h.mu.Lock()
	h.calls[fmt.Sprintf("%s %s %s", req.URL.Path, request.Operation, resource)]++
	h.mu.Unlock()

	var object metav1.PartialObjectMetadata
	if len(request.Object.Raw) > 0 {
		if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	switch {
	case object.Annotations["deny"] != "":
		response.Allowed = false
		response.Result = &metav1.Status{Message: "rejected by the webhook"}
	case req.URL.Path == "/mutate" && request.SubResource == "" && request.Operation == admissionv1.Create:
		response.PatchType = ptr.To(admissionv1.PatchTypeJSONPatch)
		response.Patch = []byte(`[{"op":"add","path":"/metadata/labels","value":{"webhook":"seen"}}]`)
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	// A client that has disconnected needs no response.
	_ = json.NewEncoder(w).Encode(&review)
}

func (h *webhook) count(what string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[what]
}

func TestAdmissionWebhooksAreCalled(t *testing.T) {
	namespace := newNamespace(t)
	createApplication(t, namespace, 0)
	hook := startWebhook(t)
	client := elastiServices(namespace)
	registrations := shared.Kubernetes.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: namespace}
	clientConfig := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(hook.url + path), CABundle: hook.authority}
	}
	timeout := ptr.To(int32(waitTimeout / time.Second))
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name: "validate.example.com", ClientConfig: clientConfig("/validate"), Rules: []admissionregistrationv1.RuleWithOperations{elastiResources()},
		NamespaceSelector: onlyIn(namespace), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: timeout,
	}}}
	if _, err := registrations.ValidatingWebhookConfigurations().Create(t.Context(), validating, metav1.CreateOptions{}); err != nil {
		t.Fatalf("registering the validating webhook: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.ValidatingWebhookConfigurations().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		Name: "mutate.example.com", ClientConfig: clientConfig("/mutate"), Rules: []admissionregistrationv1.RuleWithOperations{elastiResources()},
		NamespaceSelector: onlyIn(namespace), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: timeout,
	}}}
	if _, err := registrations.MutatingWebhookConfigurations().Create(t.Context(), mutating, metav1.CreateOptions{}); err != nil {
		t.Fatalf("registering the mutating webhook: %v", err)
	}
	t.Cleanup(func() {
		if err := registrations.MutatingWebhookConfigurations().Delete(context.Background(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	denied := newElastiService("app")
	denied.Annotations = map[string]string{"deny": "true"}
	eventually(t, "both webhooks are called", func(ctx context.Context) string {
		created, err := client.Create(ctx, newElastiService("app"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err.Error()
		}
		if created.Labels["webhook"] != "seen" || hook.count("/validate CREATE elastiservices") == 0 {
			return fmt.Sprintf("the labels are %v", created.Labels)
		}
		return ""
	})
	if complaint := notDenied("rejected by the webhook", func() error {
		_, err := client.Create(t.Context(), denied, metav1.CreateOptions{})
		return err
	}); complaint != "" {
		t.Errorf("a create: %s", complaint)
	}
	createElastiService(t, namespace, newElastiService("app"))
	if _, err := client.Wake(t.Context(), "app", &v1alpha1.WakeRequest{}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("waking: %v", err)
	}
	if err := client.Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	for _, what := range []string{"CREATE elastiservices/wake", "DELETE elastiservices"} {
		for _, path := range []string{"/mutate ", "/validate "} {
			if hook.count(path+what) == 0 {
				t.Errorf("the webhook was not called for %s%s", path, what)
			}
		}
	}
}
