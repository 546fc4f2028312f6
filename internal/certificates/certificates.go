// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certificates makes the operator its own certificate authority, for clusters without cert-manager and OLM.
//
// The rotator of open-policy-agent/cert-controller stores a CA and a serving certificate in a Secret. It also writes
// the CA certificate into the webhook configuration and the CustomResourceDefinition. The operator does not mount the
// Secret, but reads it through the API: the kubelet can update a mounted volume up to two minutes late.
package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names of objects in config/ that contain certificates or belong to the webhooks.
const (
	SecretName        = "useless-webhook-server-cert"
	ServiceName       = "useless-webhook-service"
	ValidatingWebhook = "useless-validating-webhook-configuration"
	MachineCRD        = "machines.useless.container.training"
)

// Source provides the serving certificate of the webhooks.
type Source struct {
	current  atomic.Pointer[tls.Certificate]
	injected chan struct{}
}

// GetCertificate implements tls.Config.GetCertificate. It returns an error until the first certificate is loaded.
// Until then, the webhook server is not ready.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if certificate := s.current.Load(); certificate != nil {
		return certificate, nil
	}
	return nil, errors.New("the serving certificate is not loaded yet")
}

// Injected implements healthz.Checker. It returns nil after the CA certificate was written into all objects that need
// it.
func (s *Source) Injected(*http.Request) error {
	select {
	case <-s.injected:
		return nil
	default:
		return errors.New("the CA certificate is not injected yet")
	}
}

// Setup adds the rotator of the certificates in a namespace to a manager. It creates the directory dir if necessary.
// The operator writes the certificate into dir, so the directory must be writable. The rotator is not ready before it
// finds the certificate there.
func Setup(ctx context.Context, mgr ctrl.Manager, namespace, dir string) (*Source, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the certificate directory: %w", err)
	}
	s := &Source{injected: make(chan struct{})}
	if err := s.watchSecret(ctx, mgr, dir); err != nil {
		return nil, err
	}
	uncached, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, err
	}
	host := ServiceName + "." + namespace + ".svc"
	return s, rotator.AddRotator(narrowManager{mgr, uncached}, &rotator.CertRotator{
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

// watchSecret loads the certificate from the Secret in the manager's cache whenever the Secret changes.
func (s *Source) watchSecret(ctx context.Context, mgr ctrl.Manager, dir string) error {
	secrets, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	load := func(object any) {
		if err := s.load(object.(*corev1.Secret), dir); err != nil {
			mgr.GetLogger().Error(err, "Cannot load the serving certificate", "secret", SecretName)
		}
	}
	_, err = secrets.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    load,
		UpdateFunc: func(_, object any) { load(object) },
	})
	return err
}

// CacheOptions limits the manager's cache of Secrets to the Secret with the certificates.
func CacheOptions(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", SecretName),
		},
	}
}

// load makes the certificate in a Secret the current one. It also writes the certificate into dir, without the private
// key. It ignores a Secret that the rotator has not filled yet.
func (s *Source) load(secret *corev1.Secret, dir string) error {
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

// names maps each resource to the only object name that the rotator reads.
var names = map[string]string{
	"secrets":                         SecretName,
	"validatingwebhookconfigurations": ValidatingWebhook,
	"customresourcedefinitions":       MachineCRD,
}

// narrowManager makes the rotator's cache list and watch single objects. The rotator supports no selectors. Without
// narrowManager, the rotator's cache would contain all CustomResourceDefinitions of the cluster. The operator would
// also need permission to read all Secrets of the namespace.
//
// The rotator's client has no cache. The manager's client would wait for its own writes to appear in the manager's
// cache, but some of these objects never appear there.
type narrowManager struct {
	ctrl.Manager
	client client.Client
}

// GetClient returns a client without a cache.
func (m narrowManager) GetClient() client.Client { return m.client }

// GetConfig returns a config whose requests list and watch single objects.
func (m narrowManager) GetConfig() *rest.Config {
	config := rest.CopyConfig(m.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return narrowTransport{next} })
	return config
}

type narrowTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t narrowTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if name, ok := names[path.Base(request.URL.Path)]; ok && request.Method == http.MethodGet {
		request = request.Clone(request.Context())
		query := request.URL.Query()
		query.Set("fieldSelector", fields.OneTermEqualSelector("metadata.name", name).String())
		request.URL.RawQuery = query.Encode()
	}
	return t.next.RoundTrip(request)
}

var expirationDesc = prometheus.NewDesc("useless_webhook_certificate_expiration_timestamp_seconds",
	"Time at which the serving certificate of the webhooks expires, in seconds since 1970.", nil, nil)

// ExposeExpiration registers a metric with the expiration of the certificate that get returns. While get returns an
// error, the metric has no value.
func ExposeExpiration(
	registerer prometheus.Registerer, get func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) error {
	return registerer.Register(prometheus.CollectorFunc(func(collected chan<- prometheus.Metric) {
		if certificate, err := get(nil); err == nil {
			collected <- prometheus.MustNewConstMetric(
				expirationDesc, prometheus.GaugeValue, float64(certificate.Leaf.NotAfter.Unix()))
		}
	}))
}
