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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const auditLog = `{"stage":"ResponseComplete","user":{"username":"jane"},"objectRef":{"resource":"elastiservices","namespace":"shop","name":"web","subresource":"wake"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-01-01T09:59:59.999000Z","stageTimestamp":"2026-01-01T10:00:00.000000Z"}
{"stage":"ResponseComplete","user":{"username":"resolver"},"objectRef":{"resource":"elastiservices","namespace":"shop","name":"web","subresource":"wake"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-01-01T10:00:00.001500Z","stageTimestamp":"2026-01-01T10:00:00.004250Z"}
{"stage":"ResponseComplete","user":{"username":"resolver"},"objectRef":{"resource":"elastiservices","namespace":"shop","name":"web"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T10:00:00.002000Z","stageTimestamp":"2026-01-01T10:00:00.003000Z"}
{"stage":"ResponseComplete","user":{"username":"resolver"},"objectRef":{"resource":"elastiservices","namespace":"shop","name":"other","subresource":"wake"},"responseStatus":{"code":201},"requestReceivedTimestamp":"2026-01-01T10:00:00.002000Z","stageTimestamp":"2026-01-01T10:00:00.003000Z"}
{"stage":"ResponseComplete","user":{"userna`

func TestAuditLogHasTheRequestAndTheResponseOfAWake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(file, []byte(auditLog), 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	var recorded timeline
	if err := addAuditRecords(options{namespace: "shop", name: "web", auditLog: file}, start, &recorded); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := recorded.print(&printed, start); err != nil {
		t.Fatal(err)
	}
	want := "ms as recorded by what happened" +
		" 1.5 audit log resolver creates a WakeRequest" +
		" 4.2 audit log the wake returns: 201"
	if got := strings.Join(strings.Fields(printed.String()), " "); got != want {
		t.Errorf("the timeline is %q, want %q", got, want)
	}
}
