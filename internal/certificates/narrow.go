// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"net/http"
	"path"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// names are the objects that the rotator reads, by resource.
var names = map[string]string{
	"secrets":                         SecretName,
	"validatingwebhookconfigurations": ValidatingWebhook,
	"customresourcedefinitions":       MachineCRD,
}

// narrowManager makes the rotator's cache list and watch single objects. The rotator knows no selectors: its cache would
// hold all CustomResourceDefinitions of the cluster, and need the permission to read all Secrets of the namespace. The
// rotator's client has no cache: that of the manager waits for each write in the manager's cache, which may not read these
// objects.
type narrowManager struct {
	ctrl.Manager
	client client.Client
}

func newNarrowManager(mgr ctrl.Manager) (narrowManager, error) {
	c, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	return narrowManager{mgr, c}, err
}

// GetClient overrides that of the manager.
func (m narrowManager) GetClient() client.Client { return m.client }

// GetConfig overrides that of the manager.
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
