// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"net/http"
	"path"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// names are the only objects that the rotator is about, by resource.
var names = map[string]string{
	"secrets":                         SecretName,
	"validatingwebhookconfigurations": ValidatingWebhook,
	"customresourcedefinitions":       MachineCRD,
}

// A narrowManager makes the rotator's cache, which knows no selectors, list and watch single objects. It would hold
// every CustomResourceDefinition of the cluster otherwise, and need the right to read every Secret of the namespace.
type narrowManager struct{ ctrl.Manager }

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
