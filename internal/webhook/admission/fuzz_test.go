// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/webhook/server"
)

// FuzzValidate validates the creation of a random Machine, and an update of another random Machine to this one. An
// update that changes nothing must be valid. If a creation is valid, the controller must be able to use the Machine.
func FuzzValidate(f *testing.F) {
	const plain = `{"metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`
	f.Add([]byte(plain), []byte(`{"metadata":{"name":"m"},"spec":{"switches":{"count":101}}}`))
	f.Add([]byte(plain), []byte(`{"metadata":{"name":"m"},"spec":{"switches":{"count":3,"selector":{}}}}`))
	f.Add([]byte(`{"spec":{"switches":{"count":500}}}`), []byte(`{"spec":{"switches":{"count":499}}}`))
	at := pathsOf(f.Context())
	f.Fuzz(func(t *testing.T, before, after []byte) {
		old, m := &v1beta1.Machine{}, &v1beta1.Machine{}
		if json.Unmarshal(before, old) != nil || json.Unmarshal(after, m) != nil {
			t.Skip("not a Machine")
		}
		for _, it := range []*v1beta1.Machine{old, m} {
			if errs := validate(it, it.DeepCopy(), maxSwitches, at); len(errs) > 0 && it.Spec.Switches.Count >= 0 {
				t.Errorf("an update that changes nothing of %v is invalid: %v", it, errs)
			}
		}
		created, updated := validate(nil, m, maxSwitches, at), validate(old, m, maxSwitches, at)
		if len(created) == 0 {
			checkUsable(t, m)
		}
		for _, err := range updated { // the creation has the same errors, except for immutable fields
			isOld := slices.ContainsFunc(created, func(c *field.Error) bool { return c.Error() == err.Error() })
			if !isOld && !strings.HasPrefix(err.Detail, "is immutable") {
				t.Errorf("the update has an error that the creation does not have: %v", err)
			}
		}
		if len(updated) == 0 && m.Spec.Switches.Count > max(maxSwitches, old.Spec.Switches.Count) {
			t.Errorf("an update to %d switches, above the limit, is valid", m.Spec.Switches.Count)
		}
	})
}

// checkUsable fails the test unless the controller can create switches for a Machine and find them with its selector.
func checkUsable(t *testing.T, m *v1beta1.Machine) {
	t.Helper()
	selector, err := m.SwitchSelector()
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(m.SwitchLabels())) {
		t.Errorf("the selector %v of a valid Machine does not match its labels %v: %v", selector, m.SwitchLabels(), err)
	}
	for key, value := range m.Spec.Switches.Template.Metadata.Labels {
		if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(string(value))...); len(problems) > 0 {
			t.Errorf("a valid Machine has the invalid label %q=%q: %v", key, value, problems)
		}
	}
}

// listReader lists the given Machines. Without Machines, it returns an error.
type listReader struct {
	client.Reader
	machines []v1beta1.Machine
}

func (r listReader) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if r.machines == nil {
		return errors.New("no cache")
	}
	list.(*v1beta1.MachineList).Items = r.machines
	return nil
}

// FuzzAdmission sends random bytes as admission reviews. Its seeds have objects of both versions. The webhook must
// answer each review. The answer must not be an internal error, such as a panic of the validator.
func FuzzAdmission(f *testing.F) {
	const object = `{"apiVersion":"useless.container.training/v1beta1","kind":"Machine","metadata":{"name":"m"},"spec":{"switches":{"count":3}}}`
	f.Add([]byte(review("CREATE", "v1beta1", object, "null")))
	f.Add([]byte(review("CREATE", "v1alpha1", strings.Replace(object, `"count":3`, `"count":101`, 1), "null")))
	f.Add([]byte(review("UPDATE", "v1beta1", object, strings.Replace(object, `"count":3`, `"selector":{}`, 1))))
	f.Add([]byte(review("DELETE", "v1beta1", "null", object)))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`))
	f.Add([]byte(`[`))
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		f.Fatal(err)
	}
	others := listReader{machines: []v1beta1.Machine{*machine(named("other"), selecting(values{"tier": "front"}))}}
	hook := server.LimitReviews(admission.WithValidator(scheme, newMachineValidator(others, maxSwitches)),
		semaphore.NewWeighted(server.MaxLarge))
	f.Fuzz(func(t *testing.T, body []byte) {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodPost, validatePath, bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		hook.ServeHTTP(recorder, request)
		var answer admissionv1.AdmissionReview
		if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || recorder.Code != http.StatusOK || answer.Response == nil {
			t.Fatalf("status %d, %v: %s", recorder.Code, err, recorder.Body)
		}
		if result := answer.Response.Result; !answer.Response.Allowed && (result == nil || result.Code < 400 || result.Code >= 500) {
			t.Errorf("neither allowed nor rejected: %s", recorder.Body)
		}
	})
}

// review returns an admission review as the API server sends it.
func review(operation, version, object, old string) string {
	kind := func(version string) string {
		return `{"group":"useless.container.training","version":"` + version + `","kind":"Machine"}`
	}
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","kind":` + kind("v1beta1") +
		`,"requestKind":` + kind(version) + `,"name":"m","namespace":"default","operation":"` + operation +
		`","object":` + object + `,"oldObject":` + old + `}}`
}

// FuzzOverlap compares two selectors with the labels of an object. If both selectors match the object and have a label
// key in common, they must overlap. Selectors without a common key must not overlap. The order of the two selectors
// must not matter.
func FuzzOverlap(f *testing.F) {
	f.Add("a=b", "a in (b,c)", "a=b")
	f.Add("a,!b", "b=c", "a=1")
	f.Add("a!=b", "a notin (c)", "")
	f.Add("", "a", "a=")
	f.Fuzz(func(t *testing.T, first, second, object string) {
		a, b := parseSelector(t, first), parseSelector(t, second)
		set, err := labels.ConvertSelectorToLabelsMap(object)
		if err != nil {
			t.Skip(err)
		}
		related := slices.ContainsFunc(requirements(a), func(r labels.Requirement) bool { return mentions(b, r.Key()) })
		got := overlap(a, b)
		if got != overlap(b, a) {
			t.Errorf("%q and %q overlap in only one order", first, second)
		}
		if got && !related {
			t.Errorf("%q and %q have no label in common, but overlap", first, second)
		}
		if !got && related && a.Matches(set) && b.Matches(set) {
			t.Errorf("%q and %q both match %v, but do not overlap", first, second, set)
		}
	})
}

// parseSelector parses a selector, and skips the test if a Machine cannot have it.
func parseSelector(t *testing.T, text string) labels.Selector {
	t.Helper()
	selector, err := labels.Parse(text)
	if err != nil {
		t.Skip(err)
	}
	for _, r := range requirements(selector) {
		if r.Operator() == selection.GreaterThan || r.Operator() == selection.LessThan {
			t.Skip("the selector of a Machine cannot have this operator")
		}
	}
	return selector
}

// TestAbusiveReviews sends reviews that could need much memory or time.
func TestAbusiveReviews(t *testing.T) {
	const before = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","operation":"CREATE","object":`
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	hook := server.LimitReviews(admission.WithValidator(scheme, newMachineValidator(listReader{}, maxSwitches)),
		semaphore.NewWeighted(server.MaxLarge))
	for _, tt := range []struct {
		reason, body string
		length       int64 // zero means the length of the body
		status       int
		want         string
	}{
		{"100,000 nested lists", before + strings.Repeat("[", 100_000), 0, http.StatusOK, "exceeded max depth"},
		{"100,000 nested objects", before + strings.Repeat(`{"a":`, 100_000), 0, http.StatusOK, "exceeded max depth"},
		{
			"9,000 closed nested lists", before + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + "}}", 0,
			http.StatusOK, `"allowed":false`,
		},
		{
			"more than 7 MiB", before + `"` + strings.Repeat("x", 8<<20), 0,
			http.StatusOK, "request entity is too large",
		},
		{
			"more than 7 MiB without a declared length", before + `"` + strings.Repeat("x", 8<<20), -1,
			http.StatusOK, "request entity is too large",
		},
	} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, validatePath, strings.NewReader(tt.body))
		request.Header.Set("Content-Type", "application/json")
		if tt.length != 0 {
			request.ContentLength = tt.length
		}
		hook.ServeHTTP(recorder, request)
		if answer := recorder.Body.String(); recorder.Code != tt.status || !strings.Contains(answer, tt.want) {
			t.Errorf("%s: status %d, want %d and %q: %.300s", tt.reason, recorder.Code, tt.status, tt.want, answer)
		}
	}
}
