// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime is the lifetime of the token in a ServiceAccount's kubeconfig.
const tokenLifetime = 24 * time.Hour

// ServiceAccountKubeconfig writes a kubeconfig with a token of a ServiceAccount and returns its path. The token is
// valid for a day.
func (cp *ControlPlane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	client, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		return "", fmt.Errorf("get a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	seconds := int64(tokenLifetime.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	request, err = client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("get a token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(cp.Config)
	config.BearerToken = request.Status.Token
	path := filepath.Join(cp.Dir, namespace+"."+name+".kubeconfig")
	return path, writeKubeconfig(path, config)
}

// WriteKubeconfig issues a client certificate for subject and writes a kubeconfig with it. The returned configuration
// is the same, without a client-side rate limit.
func (a *Authority) WriteKubeconfig(path, url string, subject pkix.Name) (*rest.Config, error) {
	identity, err := a.issue(subject)
	if err != nil {
		return nil, err
	}
	config := &rest.Config{
		Host:            url,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.pem, CertData: identity.cert, KeyData: identity.key},
		QPS:             -1,
	}
	return config, writeKubeconfig(path, config)
}

func writeKubeconfig(path string, config *rest.Config) error {
	const name = "useless"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}
