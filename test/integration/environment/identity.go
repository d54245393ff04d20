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

package environment

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// tokenSeconds is longer than any run of the tests.
const tokenSeconds = 24 * 60 * 60

// asServiceAccount returns the client configuration of an existing ServiceAccount in the
// cluster of admin, with a token as the only credential.
func asServiceAccount(ctx context.Context, admin *rest.Config, namespace, name string) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("creating a client for tokens: %w", err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](tokenSeconds)}}
	response, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a token of the service account %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = response.Status.Token
	return config, nil
}

// writeKubeconfig writes a client configuration to a kubeconfig file.
func writeKubeconfig(path string, config *rest.Config, namespace string) error {
	const only = "environment"
	content := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{only: {
			Server:                   config.Host,
			CertificateAuthorityData: config.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{only: {
			ClientCertificateData: config.CertData,
			ClientKeyData:         config.KeyData,
			Token:                 config.BearerToken,
		}},
		Contexts:       map[string]*clientcmdapi.Context{only: {Cluster: only, AuthInfo: only, Namespace: namespace}},
		CurrentContext: only,
	}
	if err := clientcmd.WriteToFile(content, path); err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}
