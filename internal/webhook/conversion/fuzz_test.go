// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// FuzzSpecFromV1alpha1 converts any v1alpha1 spec to v1beta1 and back.
func FuzzSpecFromV1alpha1(f *testing.F) {
	for _, spec := range []string{
		`{}`, `null`, `{"switches":3,"switchPosition":"up"}`, `{"flipDelaySeconds":0,"flipIntervalSeconds":86400}`,
		`{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"c":"d"},"annotations":{}}}}`,
	} {
		f.Add([]byte(spec))
	}
	alpha, beta := v1alpha1.GroupVersion.String(), v1beta1.GroupVersion.String()
	all := mustConverters(f)
	f.Fuzz(func(t *testing.T, spec []byte) {
		roundTripJSON[v1alpha1.MachineSpec](t, spec, all[versionPair{alpha, beta}], all[versionPair{beta, alpha}])
	})
}

// FuzzSpecToV1alpha1 converts any v1beta1 spec to v1alpha1 and back. v1beta1 is the storage version.
func FuzzSpecToV1alpha1(f *testing.F) {
	for _, spec := range []string{
		`{}`, `null`, `{"switches":{"count":3},"position":"up"}`, `{"flip":{"delaySeconds":0,"intervalSeconds":86400}}`,
		`{"switches":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"c":"d"},"annotations":{}}}}}`,
	} {
		f.Add([]byte(spec))
	}
	alpha, beta := v1alpha1.GroupVersion.String(), v1beta1.GroupVersion.String()
	all := mustConverters(f)
	f.Fuzz(func(t *testing.T, spec []byte) {
		roundTripJSON[v1beta1.MachineSpec](t, spec, all[versionPair{beta, alpha}], all[versionPair{alpha, beta}])
	})
}

// roundTripJSON converts a spec to another version and back. All fields must survive. A second conversion must produce
// the same bytes as the first.
func roundTripJSON[T any](t *testing.T, spec []byte, there, back func([]byte) ([]byte, error)) {
	t.Helper()
	var want T
	problem := utiljson.Unmarshal(spec, &want)
	via, err := there(spec)
	if (err == nil) != (problem == nil) {
		t.Fatalf("%s: the converter returns %v, the decoder returns %v", spec, err, problem)
	}
	if err != nil {
		return
	}
	first, err := back(via)
	if err != nil {
		t.Fatalf("%s is converted to %s, which cannot be converted back: %v", spec, via, err)
	}
	// The encoder omits fields with the zero value, so the test compares with the encoded value instead of the input.
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, first) {
		t.Errorf("%s is %s after the round trip", text, first)
	}
	again, err := there(first)
	if err != nil || !bytes.Equal(again, via) {
		t.Errorf("the second round trip changes %s to %s, want %s: %v", first, again, via, err)
	}
}

// FuzzReview sends any bytes as a request, twice. Both answers must be the same: a review, or an HTTP error. No
// converter may panic.
func FuzzReview(f *testing.F) {
	for _, body := range []string{
		``, `{}`, `[[[[`, `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":null}`,
		`{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"7","desiredAPIVersion":"useless.container.training/v1alpha1","objects":[` +
			`{"apiVersion":"useless.container.training/v1beta1","kind":"Machine","metadata":{"name":"m"},"spec":{"switches":{"count":3}}}]}}`,
	} {
		f.Add([]byte(body))
	}
	handler := &Handler{converters: mustConverters(f), large: semaphore.NewWeighted(1)}
	f.Fuzz(func(t *testing.T, body []byte) {
		status, answer := ask(handler, body)
		if again, text := ask(handler, body); again != status || text != answer {
			t.Errorf("the first status is %d, the second is %d: %s", status, again, cmp.Diff(answer, text))
		}
		switch status {
		case http.StatusOK:
			checkReview(t, body, answer)
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		default:
			t.Errorf("status %d: %s", status, answer)
		}
	})
}

func ask(handler http.Handler, body []byte) (status int, answer string) {
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodPost, "/convert", bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String()
}

// checkReview fails the test unless the API server can use the answer. The answer must be a failure with a message, or
// each object in it must have the desired version.
func checkReview(t *testing.T, body []byte, answer string) {
	t.Helper()
	var review apiextensionsv1.ConversionReview
	if err := json.Unmarshal([]byte(answer), &review); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	response := review.Response
	if response == nil || response.UID == "" {
		t.Fatalf("the review has no response, or the response has no uid: %s", answer)
	}
	if response.Result.Status == "Failure" {
		if response.Result.Message == "" {
			t.Errorf("the failure has no message: %s", answer)
		}
		return
	}
	var asked apiextensionsv1.ConversionReview
	if json.Unmarshal(body, &asked) != nil || asked.Request == nil {
		return // the handler and encoding/json treat duplicate names, and names in another case, differently
	}
	for _, object := range response.ConvertedObjects {
		var converted struct {
			APIVersion, Kind string
			Metadata         map[string]any
		}
		if err := json.Unmarshal(object.Raw, &converted); err != nil {
			continue // the handler does not change a number that is too large for encoding/json
		}
		want := []string{asked.Request.DesiredAPIVersion, machineKind}
		if got := []string{converted.APIVersion, converted.Kind}; !reflect.DeepEqual(got, want) && !strings.Contains(string(body), `\u`) {
			t.Errorf("requested %v, got %v: %s", want, got, answer)
		}
	}
}
