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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditSource is the source of what the audit log of the Kubernetes API server
// records: calls to the API, with their times in microseconds.
const auditSource = "audit log"

// addAuditRecords adds the wake calls since start.
func addAuditRecords(o options, start time.Time, into *timeline) error {
	file, err := os.Open(o.auditLog)
	if err != nil {
		return fmt.Errorf("reading the audit log: %w", err)
	}
	defer file.Close()
	events := json.NewDecoder(bufio.NewReader(file))
	for {
		var event auditv1.Event
		err := events.Decode(&event)
		// The last line may be in the middle of being written.
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the audit log: %w", err)
		}
		if event.RequestReceivedTimestamp.Time.Before(start) || event.Stage != auditv1.StageResponseComplete || !isWake(&event, o) {
			continue
		}
		into.add(event.RequestReceivedTimestamp.Time, auditSource, "%s creates a WakeRequest", event.User.Username)
		if event.ResponseStatus != nil {
			into.add(event.StageTimestamp.Time, auditSource, "the wake returns: %d", event.ResponseStatus.Code)
		}
	}
}

func isWake(event *auditv1.Event, o options) bool {
	ref := event.ObjectRef
	return ref != nil && ref.Resource == "elastiservices" && ref.Subresource == "wake" &&
		ref.Namespace == o.namespace && ref.Name == o.name
}
