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

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/truefoundry/elasti-apiserver/pkg/resolver/accesslog"
)

// resolverSource is the source of what the access log of a resolver records.
const resolverSource = "resolver's access log"

// resolverSelector selects the pods of the resolvers.
const resolverSelector = "app.kubernetes.io/name=elasti-resolver"

// recordTimeout is how long to wait for the record of a request that has its
// response; it is written when the connection to the pod is done with it.
const recordTimeout = 5 * time.Second

// addResolverRecords adds the steps of the requests that resolvers have
// received since start.
func addResolverRecords(ctx context.Context, host kubernetes.Interface, o options, service string, start time.Time, into *timeline) error {
	var records []accesslog.Record
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, recordTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		records, err = readAccessLogs(ctx, host, o, service, start)
		return len(records) > 0, err
	})
	if wait.Interrupted(err) {
		return errors.New("no resolver has a record of the request: they have to run with --access-log, and the request has to reach a resolver")
	}
	if err != nil {
		return fmt.Errorf("reading the resolvers' access logs: %w", err)
	}
	for _, record := range records {
		into.mark(received, record.Received)
		into.mark(podReady, record.EndpointReady)
		into.mark(responded, record.Responded)
		for _, recorded := range []struct {
			at   time.Time
			what string
		}{
			{record.Received, fmt.Sprintf("%s %s is received", record.Method, record.Path)},
			{record.WakeSucceeded, "the wake has returned"},
			{record.EndpointReady, "the pod is found ready"},
			{record.Released, "the request is sent to " + record.Pod},
			{record.Responded, fmt.Sprintf("the pod responds: %d", record.Status)},
		} {
			if !recorded.at.IsZero() {
				into.add(recorded.at, resolverSource, "%s", recorded.what)
			}
		}
	}
	return nil
}

// readAccessLogs returns the records of all resolvers about the Service.
func readAccessLogs(ctx context.Context, host kubernetes.Interface, o options, service string, start time.Time) ([]accesslog.Record, error) {
	pods, err := host.CoreV1().Pods(o.resolverNamespace).List(ctx, metav1.ListOptions{LabelSelector: resolverSelector})
	if err != nil {
		return nil, err
	}
	var records []accesslog.Record
	for _, pod := range pods.Items {
		since := metav1.NewTime(start)
		log, err := host.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{SinceTime: &since}).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		for _, record := range parseAccessLog(bytes.NewReader(log)) {
			if record.Namespace == o.namespace && record.Service == service && !record.Received.Before(start) {
				records = append(records, record)
			}
		}
	}
	return records, nil
}

// parseAccessLog returns the records in a log; its other lines are no JSON.
func parseAccessLog(log io.Reader) []accesslog.Record {
	var records []accesslog.Record
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var record accesslog.Record
		if json.Unmarshal(lines.Bytes(), &record) == nil {
			records = append(records, record)
		}
	}
	return records
}
