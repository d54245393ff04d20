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

// Package storage tests the storage in the host cluster on a real kube-apiserver,
// with other writers at work, and with the tests that k8s.io/apiserver has for
// storages.
//
// It knows nothing of what ElastiServices mean: most objects that it stores are pods. Begin
// with fixture_test.go.
package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/truefoundry/elasti-apiserver/test/integration/environment"
	"github.com/truefoundry/elasti-apiserver/test/integration/environment/environmenttest"
)

const (
	waitTimeout  = 30 * time.Second
	pollInterval = 25 * time.Millisecond
	// otherWriteInterval is how often another writer changes something in the host
	// cluster that the storage has nothing to do with.
	otherWriteInterval = 20 * time.Millisecond
)

// host is the host cluster of all tests. It is set before the first of them and
// does not change.
var host *environment.Environment

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var err error
	// Without snapshots, lists of old versions come from etcd, where a test can
	// compact them. The API server writes no Lease: tests count versions.
	if host, err = environment.StartHost(ctx, "--feature-gates=ListFromCacheSnapshot=false,APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false"); err != nil {
		fmt.Fprintf(os.Stderr, "starting the host cluster: %v\n", err)
		return 1
	}
	code := 1
	if err := prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		var writers sync.WaitGroup
		writers.Go(func() { write(ctx) })
		code = m.Run()
		cancel()
		writers.Wait()
	}
	return environmenttest.End(host, code)
}

// prepare installs the CustomResourceDefinitions and the policies of the manifests, and the
// like for the pods of the tests.
func prepare(ctx context.Context) error {
	manifests := filepath.Join(host.Manifests(), "storage")
	manifest, err := os.ReadFile(filepath.Join(manifests, "customresourcedefinitions.yaml"))
	if err != nil {
		return fmt.Errorf("reading the CustomResourceDefinitions: %w", err)
	}
	// Copies are made of ElastiServices.
	first, claims, _ := strings.Cut(string(manifest), "\n---\n")
	pods := strings.NewReplacer("storedelastiservice", "storedpod", "StoredElastiService", "StoredPod").Replace(first)
	kubectl, err := host.NewKubectl(host.Directory, host.Admin, metav1.NamespaceDefault)
	if err != nil {
		return err
	}
	if _, err := kubectl.Run(ctx, strings.Join([]string{pods, first, claims}, "\n---\n"), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := kubectl.Run(ctx, "", "apply", "-f", filepath.Join(manifests, "policies.yaml")); err != nil {
		return err
	}
	run := func(ctx context.Context, arguments ...string) (string, error) {
		return kubectl.Run(ctx, "", arguments...)
	}
	return environment.AwaitEstablished(ctx, run, "crd/storedpods.storage.elasti.truefoundry.com",
		"crd/storedelastiservices.storage.elasti.truefoundry.com", "crd/storedproxyportclaims.storage.elasti.truefoundry.com")
}

// asServer returns the client configuration of the server, which alone may write stored
// objects.
func asServer() *rest.Config {
	config := rest.CopyConfig(host.Admin)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:elasti-system:elasti-apiserver", Groups: []string{"system:masters"}}
	return config
}

// others are the other writers. A test that counts versions holds the lock.
var others sync.Mutex

// write changes something in the host cluster again and again.
func write(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		others.Lock()
		defer others.Unlock()
		if _, err := writeElsewhere(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "writing something else: %v\n", err)
		}
	}, otherWriteInterval)
}

// writeElsewhere changes something in the host cluster that the storage has
// nothing to do with, and returns the version of that.
func writeElsewhere(ctx context.Context) (string, error) {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "other-"}}
	created, err := host.Kubernetes.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, configMap, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.ResourceVersion, nil
}
