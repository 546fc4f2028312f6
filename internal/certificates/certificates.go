// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates lets the operator be its own certificate authority, for installations where neither
// cert-manager nor OLM is.
//
// The rotator of open-policy-agent/cert-controller keeps an authority and a serving certificate in a Secret and the
// authority's certificate in everything that names the webhook. The Secret is read through the API rather than from
// a mounted volume, which the kubelet fills up to two minutes later.
package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Names that config/ gives to what the operator manages certificates for.
const (
	SecretName        = "useless-webhook-server-cert"
	ServiceName       = "useless-webhook-service"
	ValidatingWebhook = "useless-validating-webhook-configuration"
	MachineCRD        = "machines.useless.container.training"
)

// Source has the webhooks' serving certificate.
type Source struct {
	current  atomic.Pointer[tls.Certificate]
	injected chan struct{}
}

// GetCertificate implements the function of that name in tls.Config. It fails until the first certificate is there,
// which keeps the webhook server from being taken for ready.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := s.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errors.New("the serving certificate is not there yet")
}

// Injected implements healthz.Checker: it is healthy once everything that names the webhook trusts the certificate.
func (s *Source) Injected(*http.Request) error {
	select {
	case <-s.injected:
		return nil
	default:
		return errors.New("the certificate authority is not yet where it must be known")
	}
}

// Setup adds to a manager what makes certificates in the namespace, rotates them and gives them to the Source. The
// directory must be writable; the rotator takes the certificate's presence there for readiness.
func (s *Source) Setup(ctx context.Context, mgr ctrl.Manager, namespace, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the certificate directory: %w", err)
	}
	secrets, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	logger := log.FromContext(ctx).WithName("certificates")
	take := func(object any) {
		if err := s.take(object.(*corev1.Secret), dir); err != nil {
			logger.Error(err, "Cannot use the serving certificate", "secret", SecretName)
		}
	}
	if _, err := secrets.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    take,
		UpdateFunc: func(_, object any) { take(object) },
	}); err != nil {
		return err
	}
	s.injected = make(chan struct{})
	host := ServiceName + "." + namespace + ".svc"
	narrow, err := newNarrowManager(mgr)
	if err != nil {
		return err
	}
	return rotator.AddRotator(narrow, &rotator.CertRotator{
		SecretKey:      types.NamespacedName{Namespace: namespace, Name: SecretName},
		CertDir:        dir,
		CAName:         "useless-operator-ca",
		CAOrganization: "useless-operator",
		DNSName:        host,
		ExtraDNSNames:  []string{host + ".cluster.local"},
		FieldOwner:     "useless-operator-certificates",
		IsReady:        s.injected,
		Webhooks: []rotator.WebhookInfo{
			{Name: ValidatingWebhook, Type: rotator.Validating},
			{Name: MachineCRD, Type: rotator.CRDConversion},
		},
	})
}

// CacheOptions keep the manager's cache from holding any Secret but the one of the certificates.
func CacheOptions(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", SecretName),
		},
	}
}

// take serves the certificate in a Secret from now on. A Secret that the rotator has not filled yet is passed over.
func (s *Source) take(secret *corev1.Secret, dir string) error {
	certificate, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(certificate) == 0 {
		return nil
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	s.current.Store(&pair)
	return os.WriteFile(filepath.Join(dir, corev1.TLSCertKey), certificate, 0o600)
}
