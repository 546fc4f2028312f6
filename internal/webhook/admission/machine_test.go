// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"container.training/useless/api/useless/v1beta1"
	clientscheme "container.training/useless/client/versioned/scheme"
)

const maxSwitches = 100

// machine returns a valid Machine after the given changes.
func machine(changes ...func(*v1beta1.Machine)) *v1beta1.Machine {
	m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}
	m.Spec.Switches.Count = 1
	for _, change := range changes {
		change(m)
	}
	return m
}

func count(n int32) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Spec.Switches.Count = n }
}

func named(name string) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Name = name }
}

func selecting(labels map[string]v1beta1.LabelValue, requirements ...v1beta1.LabelSelectorRequirement) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) {
		m.Spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: labels, MatchExpressions: requirements}
	}
}

func requirement(key string, operator metav1.LabelSelectorOperator, values ...v1beta1.LabelValue) v1beta1.LabelSelectorRequirement {
	return v1beta1.LabelSelectorRequirement{Key: key, Operator: operator, Values: values}
}

func labelled(labels map[string]v1beta1.LabelValue) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Spec.Switches.Template.Metadata.Labels = labels }
}

func annotated(annotations map[string]string) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Spec.Switches.Template.Metadata.Annotations = annotations }
}

func flipping(seconds int32) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Spec.Flip.DelaySeconds = &seconds }
}

type values = map[string]v1beta1.LabelValue

func TestValidate(t *testing.T) {
	const (
		name        = "metadata.name"
		number      = "spec.switches.count"
		selector    = "spec.switches.selector"
		labels      = "spec.switches.template.metadata.labels"
		annotations = "spec.switches.template.metadata.annotations"
	)
	front := values{"tier": "front"}
	for test, tc := range map[string]struct {
		reason string
		old, m *v1beta1.Machine
		want   map[string]string // a part of the error, by field
	}{
		"Small":         {reason: "the smallest Machine", m: machine()},
		"Largest":       {reason: "the limit itself", m: machine(count(maxSwitches))},
		"Unset":         {reason: "zero means that the field is absent, and the schema has a default", m: machine(count(0))},
		"TooMany":       {reason: "more than the limit", m: machine(count(101)), want: map[string]string{number: "must be at most 100, which is the operator's --max-switches"}},
		"Negative":      {reason: "less than one", m: machine(count(-1)), want: map[string]string{number: "must be at least 1"}},
		"LongName":      {reason: "the longest name that is a valid label value", m: machine(named(strings.Repeat("m", 63)))},
		"TooLongName":   {reason: "a name that is too long for a label value", m: machine(named(strings.Repeat("m", 64))), want: map[string]string{name: "must be at most 63 characters"}},
		"EmptySelector": {reason: "an empty selector would match every Switch", m: machine(selecting(nil)), want: map[string]string{selector: "must not be empty"}},
		"MatchLabels":   {reason: "new switches get the selector's labels", m: machine(selecting(front))},
		"Agreeing":      {reason: "a template that repeats the labels of the selector", m: machine(selecting(front), labelled(front))},
		"Expressions": {
			reason: "a template that satisfies every operator",
			m: machine(
				selecting(nil, requirement("tier", "In", "front", "back"), requirement("colour", "NotIn", "red"), requirement("size", "Exists"), requirement("old", "DoesNotExist")),
				labelled(values{"tier": "front", "colour": "blue", "size": ""})),
		},
		"UnknownOperator": {reason: "an unknown operator", m: machine(selecting(front, requirement("tier", "Is", "front"))), want: map[string]string{selector: `does not parse: "Is" is not a valid label selector operator`}},
		"InNothing":       {reason: "In without values", m: machine(selecting(front, requirement("tier", "In"))), want: map[string]string{selector: "does not parse"}},
		"ExistsValues":    {reason: "Exists with values", m: machine(selecting(front, requirement("tier", "Exists", "front"))), want: map[string]string{selector: "does not parse"}},
		"BadKey":          {reason: "an invalid label key", m: machine(selecting(values{"a tier": "front"})), want: map[string]string{selector: "does not parse"}},
		"BadValue":        {reason: "an invalid label value", m: machine(selecting(values{"tier": "no value"})), want: map[string]string{selector: "does not parse"}},
		"BadTemplateKey":  {reason: "an invalid label key", m: machine(labelled(values{"a tier": "front"})), want: map[string]string{labels: "name part must consist of"}},
		"BadTemplateValue": {
			reason: "an invalid label value", m: machine(labelled(values{"tier": "no value"})),
			want: map[string]string{labels: "a valid label must be"},
		},
		"BadAnnotation":   {reason: "an invalid annotation key", m: machine(annotated(map[string]string{"a note": ""})), want: map[string]string{annotations: "name part must consist of"}},
		"OwnName":         {reason: "a template that repeats the label of the default selector", m: machine(labelled(values{"machine": "m"}))},
		"AnotherName":     {reason: "a template that contradicts the default selector", m: machine(labelled(values{"machine": "n"})), want: map[string]string{labels: "must satisfy the selector machine=m"}},
		"NotMatchLabels":  {reason: "a template that contradicts matchLabels", m: machine(selecting(front), labelled(values{"tier": "back"})), want: map[string]string{labels: "must satisfy the selector tier=front"}},
		"NotIn":           {reason: "a template that contradicts In", m: machine(selecting(nil, requirement("tier", "In", "front")), labelled(values{"tier": "back"})), want: map[string]string{labels: "must satisfy the selector tier in (front)"}},
		"NotNotIn":        {reason: "a template that contradicts NotIn", m: machine(selecting(nil, requirement("tier", "NotIn", "front")), labelled(front)), want: map[string]string{labels: "must satisfy the selector tier notin (front)"}},
		"NotExists":       {reason: "a template that contradicts Exists", m: machine(selecting(nil, requirement("tier", "Exists"))), want: map[string]string{labels: "must satisfy the selector tier"}},
		"NotDoesNotExist": {reason: "a template that contradicts DoesNotExist", m: machine(selecting(nil, requirement("tier", "DoesNotExist")), labelled(front)), want: map[string]string{labels: "must satisfy the selector !tier"}},
		"ContradictsItself": {
			reason: "no switch can match the selector", m: machine(selecting(front, requirement("tier", "NotIn", "front"))),
			want: map[string]string{labels: "must satisfy the selector tier=front,tier notin (front)"},
		},
		"Everything": {
			reason: "all errors are reported at once",
			m: machine(named(strings.Repeat("m", 64)), count(101), selecting(values{"a tier": "x"}),
				labelled(values{"a colour": "x"}), annotated(map[string]string{"a note": ""})),
			want: map[string]string{name: "must be", number: "must be", selector: "does not parse", labels: "name part", annotations: "name part"},
		},

		"Changed":          {reason: "a changed selector would change which switches belong to the Machine", old: machine(selecting(front)), m: machine(selecting(values{"tier": "back"})), want: map[string]string{selector: "is immutable"}},
		"Added":            {reason: "an absent selector means the default selector", old: machine(), m: machine(selecting(front)), want: map[string]string{selector: "is immutable"}},
		"Removed":          {reason: "an absent selector means the default selector", old: machine(selecting(front)), m: machine(), want: map[string]string{selector: "is immutable"}},
		"StillTooMany":     {reason: "an update may keep an error of the old Machine", old: machine(count(500)), m: machine(count(500), flipping(1))},
		"Fewer":            {reason: "a lower count that is still above the limit", old: machine(count(500)), m: machine(count(400))},
		"More":             {reason: "a higher count above the limit", old: machine(count(500)), m: machine(count(501)), want: map[string]string{number: "must be at most 100"}},
		"MoreWithin":       {reason: "within the limit", old: machine(count(1)), m: machine(count(100))},
		"StillTooLong":     {reason: "a user cannot change the name, so the update ignores it", old: machine(named(strings.Repeat("m", 64))), m: machine(named(strings.Repeat("m", 64)), flipping(1))},
		"TooLongTemplate":  {reason: "a template can be valid although the name of the Machine is too long", old: machine(named(strings.Repeat("m", 64))), m: machine(named(strings.Repeat("m", 64)), labelled(front))},
		"StillBadSelector": {reason: "an update may keep an error of the old Machine", old: machine(selecting(nil)), m: machine(selecting(nil), count(2))},
		"StillBadTemplate": {reason: "an update may keep an error of the old Machine", old: machine(labelled(values{"machine": "n"})), m: machine(labelled(values{"machine": "n"}), count(2))},
		"OtherBadTemplate": {reason: "an update must not add a new error", old: machine(labelled(values{"machine": "n"})), m: machine(labelled(values{"machine": "o"})), want: map[string]string{labels: "must satisfy the selector machine=m"}},
		"FixedTemplate":    {reason: "an update may fix the template", old: machine(labelled(values{"machine": "n"})), m: machine()},
	} {
		t.Run(test, func(t *testing.T) {
			got := map[string]string{}
			for _, err := range validate(tc.old, tc.m, maxSwitches, pathsOf(t.Context())) {
				if _, twice := got[err.Field]; twice {
					t.Errorf("%s is reported more than once: %v", err.Field, err)
				}
				got[err.Field] = err.Detail
			}
			beginning := cmp.Comparer(func(a, b string) bool {
				return a != "" && b != "" && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
			})
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty(), beginning); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestProblemsAreNamedInTheRequestsVersion(t *testing.T) {
	bad := machine(named(strings.Repeat("m", 64)), count(101), selecting(nil), labelled(values{"a tier": ""}), annotated(map[string]string{"a note": ""}))
	inV1beta1 := []string{
		"metadata.name", "spec.switches.count", "spec.switches.template.metadata.labels",
		"spec.switches.template.metadata.annotations", "spec.switches.selector",
	}
	for name, tc := range map[string]struct {
		reason  string
		request *metav1.GroupVersionKind
		want    []string
	}{
		"V1beta1": {
			reason:  "the version that the webhook validates",
			request: &metav1.GroupVersionKind{Group: "useless.container.training", Version: "v1beta1", Kind: "Machine"},
			want:    inV1beta1,
		},
		"V1alpha1": {
			reason:  "the API server converts the Machine before it calls the webhook",
			request: &metav1.GroupVersionKind{Group: "useless.container.training", Version: "v1alpha1", Kind: "Machine"},
			want:    []string{"metadata.name", "spec.switches", "spec.template.metadata.labels", "spec.template.metadata.annotations", "spec.selector"},
		},
		"Unknown": {reason: "a request without a version", want: inV1beta1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := admission.NewContextWithRequest(t.Context(), admission.Request{
				AdmissionRequest: admissionv1.AdmissionRequest{RequestKind: tc.request},
			})
			var got []string
			for _, err := range validate(nil, bad, maxSwitches, pathsOf(ctx)) {
				got = append(got, err.Field)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if got := pathsOf(t.Context()).count.String(); got != "spec.switches.count" {
		t.Errorf("without a request, the path of the count is %s", got)
	}
}

// TestPathsExist resolves each path in the Go type of each version. It fails if a version has other paths than
// v1beta1, and pathsOf does not return them.
func TestPathsExist(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for kind, machine := range scheme.AllKnownTypes() {
		if kind.GroupKind() != v1beta1.GroupVersion.WithKind("Machine").GroupKind() {
			continue
		}
		ctx := admission.NewContextWithRequest(t.Context(), admission.Request{
			AdmissionRequest: admissionv1.AdmissionRequest{RequestKind: new(metav1.GroupVersionKind(kind))},
		})
		at := pathsOf(ctx)
		for _, path := range []*field.Path{at.count, at.selector, at.template} {
			typ := machine
			for name := range strings.SplitSeq(path.String(), ".") {
				if typ = fieldType(typ, name); typ == nil {
					t.Fatalf("%s of Machine has no field %s", kind.Version, path)
				}
			}
			if isCount := typ.Kind() == reflect.Int32; isCount != (path == at.count) {
				t.Errorf("%s of Machine: %s has type %s", kind.Version, path, typ)
			}
		}
	}
}

// fieldType returns the type of the field with a name in JSON, or nil.
func fieldType(typ reflect.Type, name string) reflect.Type {
	if typ.Kind() != reflect.Struct {
		return nil
	}
	for f := range typ.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f.Type
		}
	}
	return nil
}

func TestValidateCount(t *testing.T) {
	at := field.NewPath("spec", "replicas")
	const tooMany, tooFew = "must be at most 100, which is the operator's --max-switches", "must be at least 1"
	for name, tc := range map[string]struct {
		reason     string
		old, count int32
		want       string
	}{
		"One":              {reason: "the minimum", count: 1},
		"Limit":            {reason: "the maximum", count: 100},
		"BeyondLimit":      {reason: "one above the maximum", count: 101, want: tooMany},
		"Absent":           {reason: "the schema has the default of an absent count", count: 0},
		"Negative":         {reason: "a negative count", count: -1, want: tooFew},
		"NegativeBefore":   {reason: "a negative count, even if the old count was negative", old: -1, count: -1, want: tooFew},
		"Raised":           {reason: "within the limit", old: 1, count: 100},
		"RaisedBeyond":     {reason: "from the limit to a count above it", old: 100, count: 101, want: tooMany},
		"RaisedFromBeyond": {reason: "further above the limit", old: 500, count: 501, want: tooMany},
		"Kept":             {reason: "an unchanged count above a limit that was lowered later", old: 500, count: 500},
		"LoweredWithin":    {reason: "back to the limit", old: 500, count: 100},
		"LoweredBeyond":    {reason: "lower, but still above the limit", old: 500, count: 499},
	} {
		t.Run(name, func(t *testing.T) {
			var want field.ErrorList
			if tc.want != "" {
				want = field.ErrorList{field.Invalid(at, tc.count, tc.want)}
			}
			if diff := cmp.Diff(want, validateCount(tc.old, tc.count, maxSwitches, at)); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", tc.reason, diff)
			}
			_, err := newScaleValidator(maxSwitches).ValidateUpdate(t.Context(), scale(tc.old), scale(tc.count))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), want.ToAggregate().Error()) {
				t.Errorf("%s: as a scale: %v", tc.reason, err)
			}
		})
	}
}

func scale(replicas int32) *autoscalingv1.Scale {
	return &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
}
