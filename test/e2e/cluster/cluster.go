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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/truefoundry/elasti-apiserver/pkg/generated/clientset/versioned"
	"github.com/truefoundry/elasti-apiserver/test/repository"
)

const (
	// SystemNamespace is where the product is deployed.
	SystemNamespace = "elasti-system"
	// ResolverSelector selects the pods of the resolver.
	ResolverSelector = "app.kubernetes.io/name=elasti-resolver"
	// APIServerSelector selects the pods of the API server.
	APIServerSelector = "app.kubernetes.io/name=elasti-apiserver"

	// applicationImageVariable names the environment variable that overrides
	// the image of the applications, for clusters other than the local one.
	applicationImageVariable = "ELASTI_EXAMPLE_IMAGE"
)

// Cluster is a connection to the cluster under test. It is safe for concurrent use.
type Cluster struct {
	// Config is the configuration that the clients were made of. Not rate limited.
	Config *rest.Config
	// Host reaches the built-in API.
	Host kubernetes.Interface
	// Elasti reaches the product's API, through the cluster's API server.
	Elasti versioned.Interface
	// Dynamic reaches any API.
	Dynamic dynamic.Interface
	// Kubectl is the path of kubectl.
	Kubectl string
	// Repository is the root directory of this checkout.
	Repository string
	// Kubeconfig is the file that the configuration was read from.
	Kubeconfig string

	image string
}

// Connect connects to the cluster of KUBECONFIG as ConnectToHost does, and checks that
// the product is deployed there.
func Connect(ctx context.Context) (*Cluster, error) {
	c, err := ConnectToHost(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.Host.CoreV1().Namespaces().Get(ctx, SystemNamespace, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("no product to test at %s, deploy it with \"make deploy\": %w", c.Config.Host, err)
	}
	return c, nil
}

// ConnectToHost reads KUBECONFIG, and loads the image of the applications into the
// cluster where that is the local one. The product need not be deployed.
func ConnectToHost(ctx context.Context) (*Cluster, error) {
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	kubeconfig := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	if kubeconfig == "" {
		kubeconfig = filepath.Join(root, "_output", "cluster", "kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("there is no cluster to test on, start one with \"make cluster-up deploy\" or set KUBECONFIG: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "elasti-e2e"
	// What is created here is incomplete at times, on purpose.
	config.WarningHandler = rest.NoWarnings{}
	c := &Cluster{Config: config, Repository: root, Kubeconfig: kubeconfig}
	if c.Host, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", kubeconfig, err)
	}
	if c.Elasti, err = versioned.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", kubeconfig, err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client of %s: %w", kubeconfig, err)
	}
	if c.Kubectl, err = findKubectl(root); err != nil {
		return nil, err
	}
	if err := c.findImage(ctx, kubeconfig); err != nil {
		return nil, err
	}
	return c, nil
}

// findImage learns the name of the image of the applications, and loads it
// where the kubeconfig is that of the local cluster.
func (c *Cluster) findImage(ctx context.Context, kubeconfig string) error {
	if image := os.Getenv(applicationImageVariable); image != "" {
		c.image = image
		return nil
	}
	images := filepath.Join(c.Repository, "_output", "images")
	name, err := os.ReadFile(filepath.Join(images, "elasti-example.name"))
	if err != nil {
		return fmt.Errorf("the image of the test application is not built, run \"make images\" or set %s: %w", applicationImageVariable, err)
	}
	c.image = strings.TrimSpace(string(name))
	if _, err := os.Stat(filepath.Join(filepath.Dir(kubeconfig), "containerd.sock")); err != nil {
		return fmt.Errorf("KUBECONFIG is not the local cluster's, set %s to the image of the test application there: %w", applicationImageVariable, err)
	}
	return c.loadImage(ctx, "elasti-example.tar")
}

// loadImage loads an archive of _output/images into the local cluster.
func (c *Cluster) loadImage(ctx context.Context, archive string) error {
	load := exec.CommandContext(ctx, filepath.Join(c.Repository, "hack", "cluster", "load-image.sh"), filepath.Join(c.Repository, "_output", "images", archive))
	if output, err := load.CombinedOutput(); err != nil {
		return fmt.Errorf("loading %s into the cluster: %w\n%s", archive, err, output)
	}
	return nil
}

// DatabasesImage returns the image that has PostgreSQL and Redis, and loads it
// into the cluster where that is the local one. Their clients run on this
// machine, so the image has to be built here in any case.
func (c *Cluster) DatabasesImage(ctx context.Context) (string, error) {
	name, err := os.ReadFile(filepath.Join(c.Repository, "_output", "images", "elasti-databases.name"))
	if err != nil {
		return "", fmt.Errorf("the image of the databases is not built, run hack/images/databases.sh: %w", err)
	}
	if os.Getenv(applicationImageVariable) == "" {
		if err := c.loadImage(ctx, "elasti-databases.tar"); err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(name)), nil
}

// NodeAddress returns the address of a node: of this machine, where the cluster
// is the local one.
func (c *Cluster) NodeAddress(ctx context.Context) (string, error) {
	nodes, err := c.Host.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("finding the address of a node: %w", err)
	}
	for i := range nodes.Items {
		for _, address := range nodes.Items[i].Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				return address.Address, nil
			}
		}
	}
	return "", errors.New("no node has an internal address")
}

func findKubectl(repository string) (string, error) {
	own := filepath.Join(repository, "_output", "tools", "bin", "kubectl")
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return "", fmt.Errorf("put kubectl on PATH: %w", err)
	}
	return path, nil
}
