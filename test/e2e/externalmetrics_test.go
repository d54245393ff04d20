//go:build cycles || autoscalers

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

package e2e

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
)

// serveQueueLengths serves an external metrics API with the metric queue_length
// at an address of this machine, until the test ends, and returns the address.
func (s *scene) serveQueueLengths(queues map[string]func() int64) string {
	host, err := s.NodeAddress(s.ctx)
	s.check(err)
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	s.check(err)
	root := "/apis/" + externalmetrics.SchemeGroupVersion.String()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+root, func(response http.ResponseWriter, _ *http.Request) {
		writeJSON(response, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: externalmetrics.SchemeGroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "queue_length", Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("GET "+root+"/namespaces/{namespace}/queue_length", func(response http.ResponseWriter, request *http.Request) {
		selector, err := labels.Parse(request.URL.Query().Get("labelSelector"))
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		list := externalmetrics.ExternalMetricValueList{
			TypeMeta: metav1.TypeMeta{APIVersion: externalmetrics.SchemeGroupVersion.String(), Kind: "ExternalMetricValueList"},
			Items:    []externalmetrics.ExternalMetricValue{},
		}
		for queue, length := range queues {
			if set := (labels.Set{"queue": queue}); selector.Matches(set) {
				list.Items = append(list.Items, externalmetrics.ExternalMetricValue{
					MetricName: "queue_length", MetricLabels: set, Timestamp: metav1.Now(), Value: *resource.NewQuantity(length(), resource.DecimalSI),
				})
			}
		}
		writeJSON(response, list)
	})
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	server.StartTLS()
	s.Cleanup(server.Close)
	return listener.Addr().String()
}

// registerAPI registers an API at an address with the cluster until the test ends.
func (s *scene) registerAPI(group, version, address string) {
	s.Helper()
	remove, err := s.RegisterAPI(s.ctx, s.namespace, group, version, address)
	s.check(err)
	s.Cleanup(func() { s.after(remove) })
}

func writeJSON(response http.ResponseWriter, content any) {
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(content)
}
