// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	ctrlconversion "sigs.k8s.io/controller-runtime/pkg/webhook/conversion"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/webhook/conversion"
)

// newScheme returns a scheme with two versions of Machine. newStock has converters for these two versions.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	return scheme
}

// newHandler returns the operator's handler.
func newHandler() *conversion.Handler {
	handler, err := conversion.NewHandler(newScheme())
	utilruntime.Must(err)
	return handler
}

// newStock returns controller-runtime's handler with the operator's conversion functions.
func newStock(t testing.TB) http.Handler {
	t.Helper()
	scheme := newScheme()
	converter, err := ctrlconversion.NewHubSpokeConverter(&v1beta1.Machine{}, ctrlconversion.NewSpokeConverter(&v1alpha1.Machine{},
		func(_ context.Context, src *v1beta1.Machine, dst *v1alpha1.Machine) error {
			dst.ObjectMeta, dst.Spec, dst.Status = src.ObjectMeta, conversion.SpecToV1alpha1(src.Spec), src.Status
			return nil
		},
		func(_ context.Context, src *v1alpha1.Machine, dst *v1beta1.Machine) error {
			dst.ObjectMeta, dst.Spec, dst.Status = src.ObjectMeta, conversion.SpecFromV1alpha1(src.Spec), src.Status
			return nil
		}))(scheme)
	if err != nil {
		t.Fatal(err)
	}
	registry := ctrlconversion.NewRegistry()
	if err := registry.RegisterConverter(v1beta1.GroupVersion.WithKind("Machine").GroupKind(), converter); err != nil {
		t.Fatal(err)
	}
	return ctrlconversion.NewWebhookHandler(scheme, registry)
}

// serve starts a server with TLS and HTTP/1.1, and returns a client that keeps connections open, as the API server
// does. The caller closes the server.
func serve(handler http.Handler) (*httptest.Server, *http.Client) {
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	server.StartTLS()
	return server, server.Client()
}

// newRequest returns a request with a body, for a call of a handler without a network.
func newRequest(body io.Reader) *http.Request {
	request := httptest.NewRequest(http.MethodPost, "/convert", body)
	request.Header.Set("Content-Type", "application/json")
	return request
}

// send sends a request to the server and discards the answer.
func send(ctx context.Context, server *httptest.Server, client *http.Client, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/convert", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return err
}

// machines returns the body of a request to convert count Machines from the stored version.
func machines(t testing.TB, count int) []byte {
	t.Helper()
	objects := make([][]byte, count)
	for i := range objects {
		objects[i] = machine(i)
	}
	return review(t, alpha, objects...)
}

// review returns the body of a request to convert objects to a version.
func review(t testing.TB, version string, objects ...[]byte) []byte {
	t.Helper()
	raw := make([]runtime.RawExtension, len(objects))
	for i, object := range objects {
		raw[i].Raw = object
	}
	body, err := json.Marshal(apiextensionsv1.ConversionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "ConversionReview"},
		Request:  &apiextensionsv1.ConversionRequest{UID: types.UID(uid), DesiredAPIVersion: version, Objects: raw},
		Response: &apiextensionsv1.ConversionResponse{}, // the API server sends an empty response
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// machine returns a v1beta1 Machine of about 2.5 kB as the API server stores it. It was created with kubectl, has a
// finalizer, and all its switches are down.
func machine(i int) []byte { return fmt.Appendf(nil, machineFormat, i) }

// The keys are in the API server's order.
const machineFormat = `{"apiVersion":"useless.container.training/v1beta1","kind":"Machine","metadata":{` +
	`"creationTimestamp":"2026-11-20T09:00:00Z","finalizers":["useless.container.training/machine"],"generation":1,"labels":{"team":"useless"},` +
	`"managedFields":[` +
	`{"apiVersion":"useless.container.training/v1beta1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:team":{}}},"f:spec":{".":{},"f:flip":{".":{},"f:delaySeconds":{},"f:intervalSeconds":{}},"f:position":{},"f:switches":{".":{},"f:count":{},"f:template":{".":{},"f:metadata":{".":{},"f:labels":{".":{},"f:room":{}}}}}}},"manager":"kubectl-create","operation":"Update","time":"2026-11-20T09:00:00Z"},` +
	`{"apiVersion":"useless.container.training/v1beta1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:finalizers":{".":{},"v:\"useless.container.training/machine\"":{}}}},"manager":"manager","operation":"Update","time":"2026-11-20T09:00:00Z"},` +
	`{"apiVersion":"useless.container.training/v1beta1","fieldsType":"FieldsV1","fieldsV1":{"f:status":{".":{},"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Resting\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Scaled\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:observedGeneration":{},"f:reason":{},"f:status":{},"f:type":{}}},"f:observedGeneration":{},"f:position":{},"f:positions":{},"f:selector":{},"f:switches":{".":{},"f:down":{},"f:total":{},"f:up":{}}}},"manager":"manager","operation":"Update","subresource":"status","time":"2026-11-20T09:00:05Z"}],` +
	`"name":"machine-%[1]d","namespace":"default","resourceVersion":"%[1]d","uid":"4d5cb7a3-7d0e-4b1c-9d0a-%012[1]d"},` +
	`"spec":{"flip":{"delaySeconds":5,"intervalSeconds":5},"position":"down","switches":{"count":3,"template":{"metadata":{"labels":{"room":"lab"}}}}},` +
	`"status":{"conditions":[` +
	`{"lastTransitionTime":"2026-11-20T09:00:01Z","message":"3 of 3 switches","observedGeneration":1,"reason":"Scaled","status":"True","type":"Scaled"},` +
	`{"lastTransitionTime":"2026-11-20T09:00:01Z","message":"all switches are down","observedGeneration":1,"reason":"Resting","status":"True","type":"Resting"},` +
	`{"lastTransitionTime":"2026-11-20T09:00:01Z","message":"","observedGeneration":1,"reason":"Ready","status":"True","type":"Ready"}],` +
	`"observedGeneration":1,"position":"down","positions":"ddd","selector":"machine=machine-%[1]d","switches":{"down":3,"total":3,"up":0}}}`
