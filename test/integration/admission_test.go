// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"container.training/useless/api/useless/v1beta1"
)

// fields maps v1beta1 paths to values in YAML.
type fields map[string]string

// setIn sets the fields in u, at the paths of u's API version.
func (f fields) setIn(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	for path, text := range f {
		raw, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := utiljson.Unmarshal(raw, &value); err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(u.Object, value, strings.Split(in(u.GroupVersionKind().Version, path), ".")...); err != nil {
			t.Fatal(err)
		}
	}
}

// pausedMachine returns a Machine in the given API version. The Machine is paused, so the operator does not change it.
func pausedMachine(t *testing.T, version, namespace, name string, set ...fields) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(v1beta1.GroupVersion.Group + "/" + version)
	u.SetKind("Machine")
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetAnnotations(map[string]string{v1beta1.PausedAnnotation: "true"})
	for _, f := range set {
		f.setIn(t, u)
	}
	return u
}

// invalidInput is an invalid Machine and the expected error message.
type invalidInput struct {
	reason     string
	byWebhook  bool     // true if the webhook rejects the Machine; false if the schema or a CEL rule rejects it
	onlyUpdate bool     // true if only an update is invalid; false if a create is invalid too
	base       fields   // fields of a valid Machine; nil for a Machine without a spec
	bad        fields   // fields that make this Machine invalid
	want       []string // parts of the message, with v1beta1 paths
	onUpdate   []string // parts of the message on update; nil if they are the same as want
}

const (
	labelsPath      = "spec.switches.template.metadata.labels"
	annotationsPath = "spec.switches.template.metadata.annotations"

	tierIn           = "{matchExpressions: [{key: tier, operator: In, values: [front, back]}]}"
	tierNotIn        = "{matchExpressions: [{key: tier, operator: NotIn, values: [front, back]}]}"
	tierExists       = "{matchExpressions: [{key: tier, operator: Exists}]}"
	tierDoesNotExist = "{matchExpressions: [{key: tier, operator: DoesNotExist}]}"

	selectorIsImmutable = "spec.switches.selector: Invalid value: selector is immutable: create a new Machine instead"
)

var long = strings.Repeat("x", 64)

// invalidInputs lists invalid Machines. If a value violates the schema, the API server's message may contain the
// value's type instead of the value.
var invalidInputs = []invalidInput{
	{
		reason: "count 0",
		bad:    fields{"spec.switches.count": "0"},
		want:   []string{`spec.switches.count: Invalid value: 0: spec.switches.count in body should be greater than or equal to 1`},
	},
	{
		reason: "negative count",
		bad:    fields{"spec.switches.count": "-1"},
		want:   []string{`spec.switches.count: Invalid value: -1: spec.switches.count in body should be greater than or equal to 1`},
	},
	{
		reason:    "count above --max-switches",
		byWebhook: true,
		bad:       fields{"spec.switches.count": "101"},
		want:      []string{`spec.switches.count: Invalid value: 101: must be at most 100, which is the operator's --max-switches`},
	},
	{
		reason: "count above the API's maximum",
		bad:    fields{"spec.switches.count": "1001"},
		want:   []string{`spec.switches.count: Invalid value: 1001: spec.switches.count in body should be less than or equal to 1000`},
	},
	{
		reason: "count above 32 bits",
		bad:    fields{"spec.switches.count": "2147483648"},
		want:   []string{`spec.switches.count: Invalid value: 2147483648: spec.switches.count in body should be less than or equal to 1000`},
	},
	{
		reason: "count is a word",
		bad:    fields{"spec.switches.count": "three"},
		want:   []string{`spec.switches.count: Invalid value: "string": spec.switches.count in body must be of type integer: "string"`},
	},
	{
		reason: "count is a fraction",
		bad:    fields{"spec.switches.count": "1.5"},
		want:   []string{`spec.switches.count: Invalid value: "float64": spec.switches.count in body must be of type int32: "float64"`},
	},
	{
		reason: "unknown position",
		bad:    fields{"spec.position": "sideways"},
		want:   []string{`spec.position: Unsupported value: "sideways": supported values: "up", "down"`},
	},
	{
		reason: "negative delay",
		bad:    fields{"spec.flip.delaySeconds": "-1"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: -1: spec.flip.delaySeconds in body should be greater than or equal to 0`},
	},
	{
		reason: "delay above one day",
		bad:    fields{"spec.flip.delaySeconds": "86401"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: 86401: spec.flip.delaySeconds in body should be less than or equal to 86400`},
	},
	{
		reason: "delay is not a number",
		bad:    fields{"spec.flip.delaySeconds": "5s"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: "string": spec.flip.delaySeconds in body must be of type integer: "string"`},
	},
	{
		reason: "negative interval",
		bad:    fields{"spec.flip.intervalSeconds": "-1"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: -1: spec.flip.intervalSeconds in body should be greater than or equal to 0`},
	},
	{
		reason: "interval above one day",
		bad:    fields{"spec.flip.intervalSeconds": "86401"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: 86401: spec.flip.intervalSeconds in body should be less than or equal to 86400`},
	},
	{
		reason: "interval is not a number",
		bad:    fields{"spec.flip.intervalSeconds": "5s"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: "string": spec.flip.intervalSeconds in body must be of type integer: "string"`},
	},
	{
		reason:   "empty selector",
		bad:      fields{"spec.switches.selector": "{}"},
		want:     []string{`spec.switches.selector: Invalid value: selector must not be empty, because it would select every Switch in the namespace`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector: Invalid value: selector must not be empty, because it would select every Switch in the namespace`},
	},
	{
		reason:   "selector with empty matchLabels and matchExpressions",
		bad:      fields{"spec.switches.selector": "{matchLabels: {}, matchExpressions: []}"},
		want:     []string{`spec.switches.selector: Invalid value: selector must not be empty, because it would select every Switch in the namespace`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector: Invalid value: selector must not be empty, because it would select every Switch in the namespace`},
	},
	{
		reason: "unknown selector operator",
		bad:    fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: Is, values: [front]}]}"},
		want:   []string{`spec.switches.selector.matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	},
	{
		reason:   "In without values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: In}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: the operators In and NotIn require values, and the other operators do not allow values`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: the operators In and NotIn require values, and the other operators do not allow values`},
	},
	{
		reason:   "In with an empty list of values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: In, values: []}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: the operators In and NotIn require values, and the other operators do not allow values`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: the operators In and NotIn require values, and the other operators do not allow values`},
	},
	{
		reason:   "NotIn without values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: NotIn}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier NotIn: the operators In and NotIn require values, and the other operators do not allow values`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier NotIn: the operators In and NotIn require values, and the other operators do not allow values`},
	},
	{
		reason:   "Exists with values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: Exists, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier Exists: the operators In and NotIn require values, and the other operators do not allow values`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier Exists: the operators In and NotIn require values, and the other operators do not allow values`},
	},
	{
		reason:   "DoesNotExist with values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: DoesNotExist, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier DoesNotExist: the operators In and NotIn require values, and the other operators do not allow values`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier DoesNotExist: the operators In and NotIn require values, and the other operators do not allow values`},
	},
	{
		reason: "expression without a key",
		bad:    fields{"spec.switches.selector": "{matchExpressions: [{operator: Exists}]}"},
		want:   []string{`spec.switches.selector.matchExpressions[0].key: Required value`},
	},
	{
		reason:    "expression with an invalid label key",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchExpressions: [{key: 'a tier', operator: DoesNotExist}]}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchExpressions":[{"key":"a tier","operator":"DoesNotExist"}]}: does not parse: key: Invalid value: "a tier": name part must consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "expression with an invalid label value",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: NotIn, values: ['no value']}]}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchExpressions":[{"key":"tier","operator":"NotIn","values":["no value"]}]}: does not parse: values[0][tier]: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "matchLabels with an invalid key",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchLabels: {'a tier': front}}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchLabels":{"a tier":"front"}}: does not parse: key: Invalid value: "a tier": name part must consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "matchLabels with an invalid value",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchLabels: {tier: 'no value'}}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchLabels":{"tier":"no value"}}: does not parse: values[0][tier]: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason: "matchLabels with a value that is too long",
		bad:    fields{"spec.switches.selector": "{matchLabels: {tier: " + long + "}}"},
		want:   []string{`spec.switches.selector.matchLabels.tier: Too long: may not be more than 63 bytes`},
	},
	{
		reason:   "matchLabels that contradict matchExpressions",
		bad:      fields{"spec.switches.selector": "{matchLabels: {tier: front}, matchExpressions: [{key: tier, operator: NotIn, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself: matchLabels do not satisfy matchExpressions`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself: matchLabels do not satisfy matchExpressions`},
	},
	{
		reason:     "selector changed",
		onlyUpdate: true,
		base:       fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:        fields{"spec.switches.selector": "{matchLabels: {tier: back}}"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason:     "selector added",
		onlyUpdate: true,
		bad:        fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason:     "selector removed",
		onlyUpdate: true,
		base:       fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:        fields{"spec.switches.selector": "null"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason: "template label does not satisfy matchLabels",
		base:   fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:    fields{labelsPath: "{tier: back}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=back does not satisfy matchLabels tier=front`},
	},
	{
		reason: "template label does not satisfy In",
		base:   fields{"spec.switches.selector": tierIn, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "{tier: middle}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchExpressions: tier In (front, back)`},
	},
	{
		reason: "template lacks the label that In requires",
		base:   fields{"spec.switches.selector": tierIn, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "null"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier is missing, but matchExpressions require it`},
	},
	{
		reason: "template label does not satisfy NotIn",
		base:   fields{"spec.switches.selector": tierNotIn, labelsPath: "{tier: middle}"},
		bad:    fields{labelsPath: "{tier: front}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=front does not satisfy matchExpressions: tier NotIn (front, back)`},
	},
	{
		reason: "template lacks the label that Exists requires",
		base:   fields{"spec.switches.selector": tierExists, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "null"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier is missing, but matchExpressions require it`},
	},
	{
		reason: "template label does not satisfy DoesNotExist",
		base:   fields{"spec.switches.selector": tierDoesNotExist},
		bad:    fields{labelsPath: "{tier: front}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=front does not satisfy matchExpressions: tier DoesNotExist`},
	},
	{
		reason: "template label does not satisfy the default selector",
		bad:    fields{labelsPath: "{machine: another}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: machine=another does not satisfy the default selector machine=`},
	},
	{
		reason:    "template with an invalid label key",
		byWebhook: true,
		bad:       fields{labelsPath: "{'a tier': front}"},
		want:      []string{`spec.switches.template.metadata.labels: Invalid value: "a tier": name part must consist of alphanumeric characters`},
	},
	{
		reason:    "template with an invalid label value",
		byWebhook: true,
		bad:       fields{labelsPath: "{tier: 'no value'}"},
		want:      []string{`spec.switches.template.metadata.labels: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
	},
	{
		reason: "template with a label value that is too long",
		bad:    fields{labelsPath: "{tier: " + long + "}"},
		want:   []string{`spec.switches.template.metadata.labels.tier: Too long: may not be more than 63 bytes`},
	},
	{
		reason:    "template with an invalid annotation key",
		byWebhook: true,
		bad:       fields{annotationsPath: "{'a note': x}"},
		want:      []string{`spec.switches.template.metadata.annotations: Invalid value: "a note": name part must consist of alphanumeric characters`},
	},
	{
		reason: "template annotation is not a string",
		bad:    fields{annotationsPath: "{note: 1}"},
		want:   []string{`spec.switches.template.metadata.annotations.note: Invalid value: "integer": spec.switches.template.metadata.annotations.note in body must be of type string: "integer"`},
	},
	{
		reason:    "template annotations are too long",
		byWebhook: true,
		bad:       fields{annotationsPath: "{note: " + strings.Repeat("x", 256<<10) + "}"},
		want:      []string{`spec.switches.template.metadata.annotations: Too long: may not be more than 262144 bytes`},
	},
	{
		reason: "the schema reports all errors in one response",
		bad:    fields{"spec.switches.count": "0", "spec.position": "sideways", "spec.flip.delaySeconds": "-1", "spec.flip.intervalSeconds": "86401"},
		want:   []string{`spec.switches.count: Invalid value: 0`, `spec.position: Unsupported value: "sideways"`, `spec.flip.delaySeconds: Invalid value: -1`, `spec.flip.intervalSeconds: Invalid value: 86401`},
	},
	{
		reason: "the CEL rules report all errors in one response",
		bad:    fields{"spec.switches.selector": "{matchLabels: {tier: front}, matchExpressions: [{key: tier, operator: In, values: [back]}, {key: size, operator: Exists, values: [big]}]}", labelsPath: "{tier: middle}"},
		want:   []string{`spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself`, `spec.switches.selector.matchExpressions[1].values: Invalid value: size Exists`, `spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchLabels tier=front`, `spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchExpressions: tier In (back)`, `spec.switches.template.metadata.labels: Invalid value: size is missing`},
	},
	{
		reason:    "the webhook reports all errors in one response",
		byWebhook: true,
		bad:       fields{"spec.switches.count": "101", labelsPath: "{'a tier': 'no value'}", annotationsPath: "{'a note': x}"},
		want:      []string{`spec.switches.count: Invalid value: 101: must be at most 100`, `spec.switches.template.metadata.labels: Invalid value: "a tier"`, `spec.switches.template.metadata.labels: Invalid value: "no value"`, `spec.switches.template.metadata.annotations: Invalid value: "a note"`},
	},
}

// TestInvalidMachinesAreRejected creates invalid Machines, and updates valid Machines with invalid values.
func TestInvalidMachinesAreRejected(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	for i, test := range invalidInputs {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			for _, version := range []string{beta, alpha} {
				name := fmt.Sprintf("bad-%d-%s", i, version)
				if !test.onlyUpdate {
					checkInvalidCreate(t, test, version, namespace, name)
				}
				checkInvalidUpdate(t, test, version, namespace, name)
			}
		})
	}
}

func checkInvalidCreate(t *testing.T, test invalidInput, version, namespace, name string) {
	t.Helper()
	err := admin(t).Create(t.Context(), pausedMachine(t, version, namespace, name, test.base, test.bad))
	checkRejected(t, "create in "+version, err, version, test.want)
	checkRejectedByWebhook(t, err, test.byWebhook)
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := admin(t).Get(t.Context(), key, &v1beta1.Machine{}); !apierrors.IsNotFound(err) {
		t.Errorf("create in %s: the Machine exists, or cannot be read: %v", version, err)
	}
}

func checkInvalidUpdate(t *testing.T, test invalidInput, version, namespace, name string) {
	t.Helper()
	if err := admin(t).Create(t.Context(), pausedMachine(t, version, namespace, name, test.base)); err != nil {
		t.Fatal(err)
	}
	before := getMachine(t, namespace, name)
	err := update(t, version, namespace, name, test.bad)
	want := test.want
	if test.onUpdate == nil {
		checkRejectedByWebhook(t, err, test.byWebhook)
	} else {
		want = test.onUpdate
	}
	checkRejected(t, "update in "+version, err, version, want)
	if diff := cmp.Diff(before, getMachine(t, namespace, name)); diff != "" {
		t.Errorf("the rejected update in %s changed the Machine (-before +after):\n%s", version, diff)
	}
}

// update sets fields of a Machine in the given API version.
func update(t *testing.T, version, namespace, name string, set fields, options ...client.PatchOption) error {
	t.Helper()
	u := pausedMachine(t, version, namespace, name, set)
	u.SetAnnotations(nil) // a merge patch keeps the annotations that it does not contain
	raw, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return admin(t).Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", raw), options...)
}

// checkRejected fails the test unless err contains every part of want, with the field paths of version. operation is
// for failure messages.
func checkRejected(t *testing.T, operation string, err error, version string, want []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: accepted, want an error", operation)
		return
	}
	for _, part := range want {
		if part = in(version, part); !hasWording(t, err.Error(), part) {
			t.Errorf("%s: the message\n%.2000s\nlacks\n%s", operation, err, part)
		}
	}
}

const denied = `admission webhook "machine.useless.container.training" denied the request`

func checkRejectedByWebhook(t *testing.T, err error, byWebhook bool) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), denied) != byWebhook {
		t.Errorf("rejected by the webhook: %v, want %v: %.2000s", !byWebhook, byWebhook, err)
	}
}

// TestBoundaryValuesAreAccepted creates and updates Machines with valid values. Many of these values are next to the
// invalid values of TestInvalidMachinesAreRejected.
func TestBoundaryValuesAreAccepted(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	for i, test := range []struct {
		reason     string
		onlyCreate bool   // if false, the test also updates a Machine with good
		name       string // of the Machine; generated if empty
		good       fields
	}{
		{reason: "minimum count", good: fields{"spec.switches.count": "1"}},
		{reason: "count equal to --max-switches", good: fields{"spec.switches.count": "100"}},
		{reason: "no delay", good: fields{"spec.flip.delaySeconds": "0"}},
		{reason: "maximum delay", good: fields{"spec.flip.delaySeconds": "86400"}},
		{reason: "no interval", good: fields{"spec.flip.intervalSeconds": "0"}},
		{reason: "maximum interval", good: fields{"spec.flip.intervalSeconds": "86400"}},
		{reason: "position up", good: fields{"spec.position": "up"}},
		{reason: "a name with the maximum length of a label value", onlyCreate: true, name: strings.Repeat("n", 63)},
		{reason: "a name with dots", onlyCreate: true, name: "a.b-c.d"},
		{
			reason: "a generated name", onlyCreate: true,
			good: fields{"metadata.name": "null", "metadata.generateName": "made-"},
		},
		{
			reason: "template repeats the label of the default selector",
			good:   fields{labelsPath: "{machine: accepted}"}, name: "accepted",
		},
		{
			reason: "template repeats matchLabels and adds a label", onlyCreate: true,
			good: fields{
				"spec.switches.selector": "{matchLabels: {tier: front}}",
				labelsPath:               "{tier: front, colour: red}",
			},
		},
		{
			reason: "a template that satisfies every operator", onlyCreate: true,
			good: fields{
				"spec.switches.selector": "{matchLabels: {team: a}, matchExpressions: [{key: tier, operator: In, values: [front, back]}, " +
					"{key: colour, operator: NotIn, values: [red]}, {key: size, operator: Exists}, {key: old, operator: DoesNotExist}, {key: team, operator: Exists}]}",
				labelsPath: "{tier: back, colour: blue, size: ''}",
			},
		},
		{reason: "any annotation", good: fields{annotationsPath: "{example.com/note: 'any text: at all'}"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			for _, version := range []string{beta, alpha} {
				name := test.name
				if name == "" {
					name = fmt.Sprintf("good-%d-%s", i, version)
				}
				u := pausedMachine(t, version, namespace, name, test.good)
				if err := admin(t).Create(t.Context(), u); err != nil {
					t.Fatalf("create in %s: %v", version, err)
				}
				compareGood(t, u, test.good)
				if err := admin(t).Delete(t.Context(), u); err != nil {
					t.Fatal(err)
				}
				if test.onlyCreate {
					continue
				}
				if err := admin(t).Create(t.Context(), pausedMachine(t, version, namespace, name)); err != nil {
					t.Fatal(err)
				}
				if err := update(t, version, namespace, name, test.good); err != nil {
					t.Errorf("update in %s: %v", version, err)
				}
				compareGood(t, read(t, version, "machines", namespace, name), test.good)
				if err := admin(t).Delete(t.Context(), u); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// compareGood fails the test if a Machine lacks a value of good.
func compareGood(t *testing.T, u *unstructured.Unstructured, good fields) {
	t.Helper()
	want := &unstructured.Unstructured{Object: map[string]any{}}
	want.SetAPIVersion(u.GetAPIVersion())
	good.setIn(t, want)
	for path := range good {
		path = in(u.GroupVersionKind().Version, path)
		if path == "metadata.name" {
			continue // generated by the API server
		}
		if diff := cmp.Diff(at(want, path), at(u, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// TestKubectlShowsEveryProblem creates a Machine with five errors that only the webhook detects. kubectl must print all
// of them.
func TestKubectlShowsEveryProblem(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	for _, version := range []string{beta, alpha} {
		name := strings.Repeat("n", 64)
		u := pausedMachine(t, version, namespace, name, fields{
			"spec.switches.count": "101", labelsPath: "{'a tier': x}", annotationsPath: "{'a note': x}",
			"spec.switches.selector": "{matchLabels: {'a colour': x}}",
		})
		raw, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		_, stderr, err := kubectl(t, string(raw), "create", "-f", "-")
		if err == nil {
			t.Errorf("an invalid Machine was created in %s", version)
		}
		for _, part := range []string{
			`metadata.name: Invalid value: "` + name + `": must be at most 63 characters, because it becomes a label value`,
			`spec.switches.count: Invalid value: 101: must be at most 100`,
			`spec.switches.template.metadata.labels: Invalid value: "a tier": name part`,
			`spec.switches.template.metadata.annotations: Invalid value: "a note": name part`,
			`spec.switches.selector: Invalid value: {"matchLabels":{"a colour":"x"}}: does not parse`,
		} {
			if part = in(version, part); !strings.Contains(stderr, part) {
				t.Errorf("in %s, the message\n%s\nlacks\n%s", version, stderr, part)
			}
		}
	}
}

// TestScaleIsValidated scales a Machine to invalid counts.
func TestScaleIsValidated(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	if err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, "m", fields{"spec.switches.count": "2"})); err != nil {
		t.Fatal(err)
	}
	before := getMachine(t, namespace, "m")
	for _, version := range []string{beta, alpha} {
		for replicas, want := range map[string]string{
			"101":  `spec.replicas: Invalid value: 101: must be at most 100, which is the operator's --max-switches`,
			"1001": `Invalid value: 1001: `,
			"0":    `spec.switches.count: Invalid value: 0: spec.switches.count in body should be greater than or equal to 1`,
		} {
			_, stderr, err := kubectl(t, "", "scale", resource("machines", version), "m", "-n", namespace, "--replicas="+replicas)
			if want = in(version, want); err == nil || !strings.Contains(stderr, want) {
				t.Errorf("kubectl scale to %s in %s: got error %v and the message\n%s\nwant a message with\n%s", replicas, version, err, stderr, want)
			}
		}
	}
	if diff := cmp.Diff(before, getMachine(t, namespace, "m")); diff != "" {
		t.Errorf("the Machine changed (-before +after):\n%s", diff)
	}
}

// TestOverlappingSelectorsWarn expects the webhook's warnings on kubectl's standard error.
func TestOverlappingSelectorsWarn(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	// The webhook compares selectors with the Machines in the operator's cache. When a Machine has switches, the cache
	// contains the Machine.
	createMachine(t, namespace, "plain", nil)
	createMachine(t, namespace, "front", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: map[string]v1beta1.LabelValue{"tier": "front"}}
	})
	for _, name := range []string{"plain", "front"} {
		waitForPositions(t, namespace, name, "d", defaultTimeout)
	}

	for i, test := range []struct {
		reason, name, selector string
		want                   string
	}{
		{reason: "another label", selector: `{matchLabels: {colour: red}}`},
		{reason: "another value", selector: `{matchLabels: {tier: back}}`},
		{reason: "the default selector", selector: "null"},
		{
			reason: "the same selector", selector: `{matchLabels: {tier: front}}`,
			want: "selector tier=front overlaps the selector of Machine front, tier=front: either may adopt a Switch that matches both",
		},
		{
			reason: "a wider selector", selector: `{matchExpressions: [{key: tier, operator: NotIn, values: [back]}]}`,
			want: "selector tier notin (back) overlaps the selector of Machine front, tier=front: either may adopt a Switch that matches both",
		},
		{
			reason: "the default selector of another Machine", selector: `{matchLabels: {machine: plain}}`,
			want: "selector machine=plain overlaps the selector of Machine plain, machine=plain: either may adopt a Switch that matches both",
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			for _, version := range []string{beta, alpha} {
				raw, err := pausedMachine(t, version, namespace, fmt.Sprintf("m-%d-%s", i, version), fields{"spec.switches.selector": test.selector}).MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				// Without --dry-run, the stored v1beta1 Machine would overlap the v1alpha1 Machine.
				_, stderr, err := kubectl(t, string(raw), "create", "--dry-run=server", "-f", "-")
				var got []string
				for line := range strings.Lines(stderr) {
					if !strings.Contains(line, "deprecated") {
						got = append(got, strings.TrimSuffix(strings.TrimPrefix(line, "Warning: "), "\n"))
					}
				}
				if err != nil || strings.Join(got, "\n") != test.want {
					t.Errorf("create in %s: got error %v and standard error %q, want standard error %q", version, err, got, test.want)
				}
			}
		})
	}
	t.Run("the default selector, overlapped by an existing selector", func(t *testing.T) {
		t.Parallel()
		other := createMachine(t, namespace, "other", func(spec *v1beta1.MachineSpec) {
			spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: map[string]v1beta1.LabelValue{"machine": "late"}}
		})
		waitForPositions(t, namespace, other.Name, "d", defaultTimeout)
		_, stderr, err := kubectl(t, "{apiVersion: useless.container.training/v1beta1, kind: Machine, metadata: {name: late}}", "create", "-n", namespace, "-f", "-")
		if want := "Warning: selector machine=late overlaps the selector of Machine other, machine=late: "; err != nil || !strings.Contains(stderr, want) {
			t.Errorf("got error %v and standard error %q, want standard error with %q", err, stderr, want)
		}
		getMachine(t, namespace, "late") // the Machine exists despite the warning
	})
}

// TestCELRulesAgreeWithTheWebhook checks that the CEL rules and the webhook allow the same Machines. The Machines are
// all combinations of some selectors and templates.
func TestCELRulesAgreeWithTheWebhook(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	callWebhook := webhookClient(t)
	for _, template := range []string{
		"null", "{a: red}", "{a: blue}", "{b: big}", "{a: red, b: big}", "{machine: m}", "{machine: another}", "{machine: another, a: red}",
	} {
		for _, selector := range selectors() {
			t.Run(selector+" with "+template, func(t *testing.T) {
				t.Parallel()
				allowedBy := map[string]bool{}
				for _, version := range []string{beta, alpha} {
					u := pausedMachine(t, version, namespace, "m", fields{"spec.switches.selector": selector, labelsPath: template})
					err := admin(t).Create(t.Context(), u, client.DryRunAll)
					if err != nil && !apierrors.IsInvalid(err) {
						t.Fatal(err)
					}
					// The API server calls the webhook only if the CEL rules allow the Machine.
					allowedBy["CEL rules in "+version] = err == nil || strings.Contains(err.Error(), denied)
				}
				m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "m"}}
				u := pausedMachine(t, beta, namespace, "m", fields{"spec.switches.selector": selector, labelsPath: template, "spec.switches.count": "1"})
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, m); err != nil {
					t.Fatal(err)
				}
				response := callWebhook(t, nil, m)
				for rules, allowed := range allowedBy {
					if allowed != response.Allowed {
						t.Errorf("allowed by the %s: %v; by the webhook: %v, %v", rules, allowed, response.Allowed, response.Result)
					}
				}
			})
		}
	}
}

// TestSelectorsAreImmutable replaces each selector by each other selector. The CEL rules and the webhook must both
// reject this.
func TestSelectorsAreImmutable(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	callWebhook := webhookClient(t)
	all := []string{"null", "{matchLabels: {a: red}}", "{matchLabels: {a: blue}}", "{matchExpressions: [{key: a, operator: NotIn, values: [red]}]}"}
	for i, from := range all {
		name := fmt.Sprintf("m-%d", i)
		if err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, name, fields{"spec.switches.selector": from})); err != nil {
			t.Fatal(err)
		}
		old := getMachine(t, namespace, name)
		for j, to := range all {
			m := old.DeepCopy()
			u := pausedMachine(t, beta, namespace, name, fields{"spec.switches.selector": to})
			wanted := &v1beta1.Machine{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, wanted); err != nil {
				t.Fatal(err)
			}
			m.Spec.Switches.Selector = wanted.Spec.Switches.Selector
			if response := callWebhook(t, old, m); response.Allowed != (i == j) {
				t.Errorf("from %s to %s: allowed by the webhook: %v, %v", from, to, response.Allowed, response.Result)
			}
			for _, version := range []string{beta, alpha} {
				m := object(t, mustKubectl(t, "", "get", resource("machines", version), name, "-n", namespace, "-o", "json"))
				fields{"spec.switches.selector": to}.setIn(t, m)
				err := admin(t).Update(t.Context(), m, client.DryRunAll)
				if want := in(version, selectorIsImmutable); (err == nil) != (i == j) || err != nil && !hasWording(t, err.Error(), want) {
					t.Errorf("from %s to %s: the CEL rules in %s return: %v", from, to, version, err)
				}
			}
		}
	}
}

// selectors returns combinations of matchLabels and matchExpressions. Some of them do not parse, and some contradict
// themselves.
func selectors() []string {
	all := []string{"null", "{}"}
	expressions := []string{""}
	for _, one := range []string{
		"operator: In, values: [red]", "operator: In, values: [red, blue]", "operator: In, values: [green]", "operator: In", "operator: NotIn, values: [red]",
		"operator: NotIn, values: [green]", "operator: NotIn", "operator: Exists", "operator: Exists, values: [red]", "operator: DoesNotExist",
	} {
		expressions = append(expressions, "{key: a, "+one+"}")
	}
	expressions = append(expressions, "{key: b, operator: Exists}", "{key: a, operator: Exists}, {key: b, operator: NotIn, values: [big]}")
	for _, labels := range []string{"{}", "{a: red}", "{b: big}"} {
		for _, expression := range expressions {
			all = append(all, fmt.Sprintf("{matchLabels: %s, matchExpressions: [%s]}", labels, expression))
		}
	}
	return all
}

// webhookClient returns a function that calls the operator's webhook as the API server does. old is nil for a create.
func webhookClient(t *testing.T) func(t *testing.T, old, m *v1beta1.Machine) *admissionv1.AdmissionResponse {
	t.Helper()
	certificate, err := os.ReadFile(filepath.Join(clusterOf(t).webhookDir, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	httpClient := http.Client{Transport: transport}
	url := fmt.Sprintf("https://127.0.0.1:%d/validate-useless-container-training-v1beta1-machine", clusterOf(t).webhookPort)

	return func(t *testing.T, old, m *v1beta1.Machine) *admissionv1.AdmissionResponse {
		t.Helper()
		request := &admissionv1.AdmissionRequest{UID: "1", Operation: admissionv1.Create, Object: runtime.RawExtension{Object: m}}
		if old != nil {
			request.Operation, request.OldObject = admissionv1.Update, runtime.RawExtension{Object: old}
		}
		review := admissionv1.AdmissionReview{Request: request}
		review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
		body, err := json.Marshal(review)
		if err != nil {
			t.Fatal(err)
		}
		response, err := httpClient.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var answer admissionv1.AdmissionReview
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Response == nil {
			t.Fatalf("%v: %v", response.Status, err)
		}
		return answer.Response
	}
}

// TestWithoutWebhook runs the operator without its webhooks. No process listens on their port.
func TestWithoutWebhook(t *testing.T) {
	useExclusiveCluster(t)
	namespace, doomed := newNamespace(t), newNamespace(t)
	stop := runOperatorFor(t, operatorOptions{})
	for _, ns := range []string{namespace, doomed} {
		for _, version := range []string{beta, alpha} {
			mustKubectl(t, fmt.Sprintf("{apiVersion: useless.container.training/%s, kind: Machine, metadata: {name: created-as-%[1]s}}", version),
				"create", "-n", ns, "-f", "-")
			waitForPositions(t, ns, "created-as-"+version, "d", defaultTimeout)
		}
	}
	stop()
	runOperatorFor(t, operatorOptions{noWebhooks: true})
	mustKubectl(t, "", "delete", "namespace", doomed, "--wait=false") // the deletion takes longest, so it starts first

	for _, test := range invalidInputs {
		t.Run("rejected: "+test.reason, func(t *testing.T) {
			checkWithoutWebhook(t, test, namespace)
		})
	}
	t.Run("valid changes are rejected, because the webhook does not answer", func(t *testing.T) {
		testValidIsRejected(t, namespace)
	})
	t.Run("Machines are read as v1beta1", func(t *testing.T) {
		// The API server stores all Machines in v1beta1, also the Machine that was created in v1alpha1. So a read in
		// v1beta1 needs no conversion webhook.
		for _, version := range []string{beta, alpha} {
			u := read(t, beta, "machines", namespace, "created-as-"+version)
			if got := at(u, "status.positions"); got != "d" {
				t.Errorf("positions are %v", got)
			}
		}
		if got := strings.Count(mustKubectl(t, "", "get", "machines", "-n", namespace, "-o", "name"), "machine.useless"); got != 2 {
			t.Errorf("got %d Machines, want 2", got)
		}
	})
	t.Run("Switches are written in both versions", func(t *testing.T) {
		writeSwitch(t, namespace, alpha, beta)
	})
	for _, version := range []string{beta, alpha} {
		t.Run("a Machine created as "+version+" can be changed and deleted", func(t *testing.T) {
			testChangedAndDeleted(t, namespace, "created-as-"+version)
		})
	}
	t.Run("a namespace with Machines is deleted", func(t *testing.T) {
		mustKubectl(t, "", "wait", "namespace", doomed, "--for=delete", "--timeout=60s")
	})
}

// checkWithoutWebhook checks that the API server still rejects an invalid Machine. If the schema or a CEL rule rejects
// the Machine, the message is the same as with the webhook. Otherwise, the message says that the call to the webhook
// failed.
func checkWithoutWebhook(t *testing.T, test invalidInput, namespace string) {
	t.Helper()
	want := test.want
	if test.byWebhook {
		want = []string{failedCalling}
	}
	if !test.onlyUpdate {
		err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, "bad", test.base, test.bad))
		checkRejected(t, "create", err, beta, want)
	}
	if test.base == nil { // created-as-v1beta1 has no base either, so the test can update this Machine
		if test.onUpdate != nil {
			want = test.onUpdate
		}
		err := update(t, beta, namespace, "created-as-v1beta1", test.bad)
		checkRejected(t, "update", err, beta, want)
	}
}

const (
	failedCalling      = `failed calling webhook "machine.useless.container.training"`
	failedCallingScale = `failed calling webhook "machine-scale.useless.container.training"`
)

func testValidIsRejected(t *testing.T, namespace string) {
	before := getMachine(t, namespace, "created-as-v1beta1")
	for operation, test := range map[string]struct {
		manifest string
		args     []string
		want     string
	}{
		"create": {
			manifest: "{apiVersion: useless.container.training/v1beta1, kind: Machine, metadata: {name: right}}",
			args:     []string{"create", "-f", "-"}, want: failedCalling,
		},
		"update": {args: []string{"patch", "machine", "created-as-v1beta1", "--type=merge", "-p", `{"spec": {"switches": {"count": 2}}}`}, want: failedCalling},
		"scale":  {args: []string{"scale", "machine", "created-as-v1beta1", "--replicas=2"}, want: failedCallingScale},
	} {
		_, stderr, err := kubectl(t, test.manifest, append(test.args, "-n", namespace)...)
		if err == nil || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: got error %v and the message\n%s\nwant a message with\n%s", operation, err, stderr, test.want)
		}
	}
	if diff := cmp.Diff(before, getMachine(t, namespace, "created-as-v1beta1")); diff != "" {
		t.Errorf("the Machine changed (-before +after):\n%s", diff)
	}
}

// testChangedAndDeleted changes a Machine's labels, annotations and status, but not its spec. It also turns the switch
// up, and waits until the operator updates the status. Then it deletes the Machine.
func testChangedAndDeleted(t *testing.T, namespace, name string) {
	mustKubectl(t, "", "label", "machine", name, "-n", namespace, "colour=red")
	mustKubectl(t, "", "annotate", "machine", name, "-n", namespace, "note=any")
	m := getMachine(t, namespace, name)
	if m.Labels["colour"] != "red" || m.Annotations["note"] != "any" {
		t.Errorf("the Machine has labels %v and annotations %v", m.Labels, m.Annotations)
	}

	// The operator writes the Machine's status: one switch is up.
	turnUp(t, namespace, name+"-0")
	waitForPositions(t, namespace, name, "u", defaultTimeout)
	mustKubectl(t, "", "patch", "machine", name, "-n", namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"lastFlipTime": "2020-01-01T00:00:00.000000Z"}}`)

	mustKubectl(t, "", "delete", "machine", name, "-n", namespace, "--timeout=1m")
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name + "-0"}, &v1beta1.Switch{})
		return apierrors.IsNotFound(err), fmt.Sprintf("the switch exists, or cannot be read: %v", err)
	})
}

// TestLowerLimitLeavesMachinesWritable restarts the operator with a --max-switches that existing Machines exceed. The
// webhook must reject an update only if it increases a count to more than --max-switches.
func TestLowerLimitLeavesMachinesWritable(t *testing.T) {
	useExclusiveCluster(t)
	namespace := newNamespace(t)
	stop := runOperatorFor(t, operatorOptions{maxSwitches: 100})
	for _, name := range []string{"large", "doomed"} {
		createMachine(t, namespace, name, func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 50 })
		waitForPositions(t, namespace, name, strings.Repeat("d", 50), defaultTimeout)
	}
	stop()
	runOperatorFor(t, operatorOptions{maxSwitches: 10})

	err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, "new", fields{"spec.switches.count": "11"}))
	checkRejected(t, "create", err, beta, []string{
		"spec.switches.count: Invalid value: 11: must be at most 10, which is the operator's --max-switches",
	})
	mustKubectl(t, "", "label", "machine", "large", "-n", namespace, "colour=red")
	if got := getMachine(t, namespace, "large").Labels["colour"]; got != "red" {
		t.Errorf("the label is %q", got)
	}
	mustKubectl(t, "", "delete", "machine", "doomed", "-n", namespace, "--timeout=1m") // the finalizer is removed

	for _, version := range []string{beta, alpha} {
		for seconds, field := range map[string]string{"0": "spec.flip.delaySeconds", "1": "spec.flip.intervalSeconds"} {
			if err := update(t, version, namespace, "large", fields{field: seconds, labelsPath: "{" + version + ": changed}"}); err != nil {
				t.Errorf("%s in %s: %v", field, version, err)
			}
		}
	}
	// The operator still reconciles the Machine and writes its status.
	waitForPositions(t, namespace, "large", strings.Repeat("d", 50), defaultTimeout)
	turnUp(t, namespace, "large-7")
	eventually(t, defaultTimeout, func() (bool, string) {
		m := getMachine(t, namespace, "large")
		return m.Status.LastFlipTime != nil && m.Status.Switches.Down == 50, fmt.Sprintf("status is %+v", m.Status)
	})

	for _, step := range []struct {
		count    int
		rejected bool
	}{{51, true}, {40, false}, {41, true}, {45, true}, {40, false}, {5, false}, {11, true}, {10, false}, {1, false}} {
		setCount(t, namespace, "large", step.count, step.rejected)
	}
	waitForPositions(t, namespace, "large", "d", defaultTimeout)
}

// setCount sets a Machine's count by an update in each version and by kubectl scale. rejected says whether the webhook
// must reject these requests. --max-switches is 10.
func setCount(t *testing.T, namespace, name string, count int, rejected bool) {
	t.Helper()
	before := getMachine(t, namespace, name).Spec.Switches.Count
	rule := fmt.Sprintf("Invalid value: %d: must be at most 10, which is the operator's --max-switches", count)
	check := func(operation string, err error, message, path string) {
		t.Helper()
		if (err != nil) != rejected || rejected && !strings.Contains(message, path+": "+rule) {
			t.Errorf("from %d to %d, %s: %v, with the message\n%s", before, count, operation, err, message)
		}
	}
	for _, version := range []string{beta, alpha} {
		const path = "spec.switches.count"
		err := update(t, version, namespace, name, fields{path: fmt.Sprint(count)})
		check("update in "+version, err, fmt.Sprint(err), in(version, path))
	}
	_, stderr, err := kubectl(t, "", "scale", "machine", name, "-n", namespace, fmt.Sprintf("--replicas=%d", count))
	check("kubectl scale", err, stderr, "spec.replicas")

	want := int32(count)
	if rejected {
		want = before
	}
	if got := getMachine(t, namespace, name).Spec.Switches.Count; got != want {
		t.Errorf("from %d to %d: the count is %d", before, count, got)
	}
}
