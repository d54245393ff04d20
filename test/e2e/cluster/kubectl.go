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
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"k8s.io/client-go/tools/clientcmd"
)

// ServiceAccount creates a service account in the namespace that may do what
// the rules say and nothing else, and writes a kubeconfig for it into the directory.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name, directory string, rules ...rbacv1.PolicyRule) (kubeconfig string, err error) {
	account := metav1.ObjectMeta{Name: name, Namespace: namespace}
	if _, err := c.Host.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: account}, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating service account %s: %w", name, err)
	}
	if _, err := c.Host.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: account, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating role %s: %w", name, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: account,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	if _, err := c.Host.RbacV1().RoleBindings(namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("creating role binding %s: %w", name, err)
	}
	token, err := c.Host.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("creating a token of service account %s: %w", name, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server:                   c.Config.Host,
		CertificateAuthority:     c.Config.CAFile,
		CertificateAuthorityData: c.Config.CAData,
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	path := filepath.Join(directory, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return path, nil
}

// RunKubectl runs kubectl with a kubeconfig and an input, and returns what it
// printed. A failure's text is in the error.
func (c *Cluster) RunKubectl(ctx context.Context, kubeconfig, input string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, c.Kubectl, arguments...)
	command.Env = append(os.Environ(), clientcmd.RecommendedConfigPathEnvVar+"="+kubeconfig)
	command.Stdin = strings.NewReader(input)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, output)
	}
	return string(output), nil
}
