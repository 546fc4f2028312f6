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

func newNarrowManager(mgr ctrl.Manager) (narrowManager, error) {
	c, err := client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	return narrowManager{mgr, c}, err
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
