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
	"time"

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

// fields are values in YAML by their v1beta1 paths.
type fields map[string]string

// setIn sets the fields in an object, where its version has them.
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

// pausedMachine is a Machine in a version that the operator leaves alone.
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

// A refusal is bad input and what is said of it.
type refusal struct {
	reason     string
	byWebhook  bool     // else by the API server alone
	onlyUpdate bool     // else on create, too
	base       fields   // what is right
	bad        fields   // what is wrong
	want       []string // in the message, with v1beta1 paths
	onUpdate   []string // in the message for a Machine that has the base already, if that differs
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

// Where the API server checks a schema, it may name a value's type instead of the value.
var refusals = []refusal{
	{
		reason: "a Machine has a switch",
		bad:    fields{"spec.switches.count": "0"},
		want:   []string{`spec.switches.count: Invalid value: 0: spec.switches.count in body should be greater than or equal to 1`},
	},
	{
		reason: "there are no fewer switches than none",
		bad:    fields{"spec.switches.count": "-1"},
		want:   []string{`spec.switches.count: Invalid value: -1: spec.switches.count in body should be greater than or equal to 1`},
	},
	{
		reason:    "the operator allows 100",
		byWebhook: true,
		bad:       fields{"spec.switches.count": "101"},
		want:      []string{`spec.switches.count: Invalid value: 101: must be at most 100, which is the operator's --max-switches`},
	},
	{
		reason: "the API allows 1000",
		bad:    fields{"spec.switches.count": "1001"},
		want:   []string{`spec.switches.count: Invalid value: 1001: spec.switches.count in body should be less than or equal to 1000`},
	},
	{
		reason: "32 bits are not enough",
		bad:    fields{"spec.switches.count": "2147483648"},
		want:   []string{`spec.switches.count: Invalid value: 2147483648: spec.switches.count in body should be less than or equal to 1000`},
	},
	{
		reason: "a word is no number",
		bad:    fields{"spec.switches.count": "three"},
		want:   []string{`spec.switches.count: Invalid value: "string": spec.switches.count in body must be of type integer: "string"`},
	},
	{
		reason: "there is no half switch",
		bad:    fields{"spec.switches.count": "1.5"},
		want:   []string{`spec.switches.count: Invalid value: "float64": spec.switches.count in body must be of type int32: "float64"`},
	},
	{
		reason: "there are two positions",
		bad:    fields{"spec.position": "sideways"},
		want:   []string{`spec.position: Unsupported value: "sideways": supported values: "up", "down"`},
	},
	{
		reason: "a delay is no less than nothing",
		bad:    fields{"spec.flip.delaySeconds": "-1"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: -1: spec.flip.delaySeconds in body should be greater than or equal to 0`},
	},
	{
		reason: "a delay is at most a day",
		bad:    fields{"spec.flip.delaySeconds": "86401"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: 86401: spec.flip.delaySeconds in body should be less than or equal to 86400`},
	},
	{
		reason: "a delay is a number",
		bad:    fields{"spec.flip.delaySeconds": "5s"},
		want:   []string{`spec.flip.delaySeconds: Invalid value: "string": spec.flip.delaySeconds in body must be of type integer: "string"`},
	},
	{
		reason: "an interval is no less than nothing",
		bad:    fields{"spec.flip.intervalSeconds": "-1"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: -1: spec.flip.intervalSeconds in body should be greater than or equal to 0`},
	},
	{
		reason: "an interval is at most a day",
		bad:    fields{"spec.flip.intervalSeconds": "86401"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: 86401: spec.flip.intervalSeconds in body should be less than or equal to 86400`},
	},
	{
		reason: "an interval is a number",
		bad:    fields{"spec.flip.intervalSeconds": "5s"},
		want:   []string{`spec.flip.intervalSeconds: Invalid value: "string": spec.flip.intervalSeconds in body must be of type integer: "string"`},
	},
	{
		reason:   "an empty selector takes everything",
		bad:      fields{"spec.switches.selector": "{}"},
		want:     []string{`spec.switches.selector: Invalid value: selector must not be empty: it would take every Switch in the namespace`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector: Invalid value: selector must not be empty: it would take every Switch in the namespace`},
	},
	{
		reason:   "a selector of nothing is empty",
		bad:      fields{"spec.switches.selector": "{matchLabels: {}, matchExpressions: []}"},
		want:     []string{`spec.switches.selector: Invalid value: selector must not be empty: it would take every Switch in the namespace`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector: Invalid value: selector must not be empty: it would take every Switch in the namespace`},
	},
	{
		reason: "Is is no operator",
		bad:    fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: Is, values: [front]}]}"},
		want:   []string{`spec.switches.selector.matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
	},
	{
		reason:   "In needs values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: In}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: values must be given for In and NotIn, and for no other operator`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: values must be given for In and NotIn, and for no other operator`},
	},
	{
		reason:   "In needs more than no values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: In, values: []}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: values must be given for In and NotIn, and for no other operator`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier In: values must be given for In and NotIn, and for no other operator`},
	},
	{
		reason:   "NotIn needs values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: NotIn}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier NotIn: values must be given for In and NotIn, and for no other operator`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier NotIn: values must be given for In and NotIn, and for no other operator`},
	},
	{
		reason:   "Exists takes no values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: Exists, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier Exists: values must be given for In and NotIn, and for no other operator`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier Exists: values must be given for In and NotIn, and for no other operator`},
	},
	{
		reason:   "DoesNotExist takes no values",
		bad:      fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: DoesNotExist, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions[0].values: Invalid value: tier DoesNotExist: values must be given for In and NotIn, and for no other operator`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions[0].values: Invalid value: tier DoesNotExist: values must be given for In and NotIn, and for no other operator`},
	},
	{
		reason: "an expression has a key",
		bad:    fields{"spec.switches.selector": "{matchExpressions: [{operator: Exists}]}"},
		want:   []string{`spec.switches.selector.matchExpressions[0].key: Required value`},
	},
	{
		reason:    "a key is a label's name",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchExpressions: [{key: 'a tier', operator: DoesNotExist}]}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchExpressions":[{"key":"a tier","operator":"DoesNotExist"}]}: does not parse: key: Invalid value: "a tier": name part must consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "values are label values",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchExpressions: [{key: tier, operator: NotIn, values: ['no value']}]}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchExpressions":[{"key":"tier","operator":"NotIn","values":["no value"]}]}: does not parse: values[0][tier]: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "matchLabels has label names",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchLabels: {'a tier': front}}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchLabels":{"a tier":"front"}}: does not parse: key: Invalid value: "a tier": name part must consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason:    "matchLabels has label values",
		byWebhook: true,
		bad:       fields{"spec.switches.selector": "{matchLabels: {tier: 'no value'}}"},
		want:      []string{`spec.switches.selector: Invalid value: {"matchLabels":{"tier":"no value"}}: does not parse: values[0][tier]: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
		onUpdate:  []string{selectorIsImmutable},
	},
	{
		reason: "a label value is short",
		bad:    fields{"spec.switches.selector": "{matchLabels: {tier: " + long + "}}"},
		want:   []string{`spec.switches.selector.matchLabels.tier: Too long: may not be more than 63 bytes`},
	},
	{
		reason:   "a selector selects something",
		bad:      fields{"spec.switches.selector": "{matchLabels: {tier: front}, matchExpressions: [{key: tier, operator: NotIn, values: [front]}]}"},
		want:     []string{`spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself: matchLabels do not satisfy matchExpressions`},
		onUpdate: []string{selectorIsImmutable, `spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself: matchLabels do not satisfy matchExpressions`},
	},
	{
		reason:     "a selector stays",
		onlyUpdate: true,
		base:       fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:        fields{"spec.switches.selector": "{matchLabels: {tier: back}}"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason:     "a selector does not come later",
		onlyUpdate: true,
		bad:        fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason:     "a selector does not go",
		onlyUpdate: true,
		base:       fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:        fields{"spec.switches.selector": "null"},
		onUpdate:   []string{selectorIsImmutable},
	},
	{
		reason: "a template satisfies matchLabels",
		base:   fields{"spec.switches.selector": "{matchLabels: {tier: front}}"},
		bad:    fields{labelsPath: "{tier: back}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=back does not satisfy matchLabels tier=front`},
	},
	{
		reason: "a template satisfies In",
		base:   fields{"spec.switches.selector": tierIn, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "{tier: middle}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchExpressions: tier In (front, back)`},
	},
	{
		reason: "a template has what In asks for",
		base:   fields{"spec.switches.selector": tierIn, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "null"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier is missing, which matchExpressions ask for`},
	},
	{
		reason: "a template satisfies NotIn",
		base:   fields{"spec.switches.selector": tierNotIn, labelsPath: "{tier: middle}"},
		bad:    fields{labelsPath: "{tier: front}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=front does not satisfy matchExpressions: tier NotIn (front, back)`},
	},
	{
		reason: "a template has what Exists asks for",
		base:   fields{"spec.switches.selector": tierExists, labelsPath: "{tier: front}"},
		bad:    fields{labelsPath: "null"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier is missing, which matchExpressions ask for`},
	},
	{
		reason: "a template satisfies DoesNotExist",
		base:   fields{"spec.switches.selector": tierDoesNotExist},
		bad:    fields{labelsPath: "{tier: front}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: tier=front does not satisfy matchExpressions: tier DoesNotExist`},
	},
	{
		reason: "a template satisfies the default selector",
		bad:    fields{labelsPath: "{machine: another}"},
		want:   []string{`spec.switches.template.metadata.labels: Invalid value: machine=another does not satisfy the default selector machine=`},
	},
	{
		reason:    "a template has label names",
		byWebhook: true,
		bad:       fields{labelsPath: "{'a tier': front}"},
		want:      []string{`spec.switches.template.metadata.labels: Invalid value: "a tier": name part must consist of alphanumeric characters`},
	},
	{
		reason:    "a template has label values",
		byWebhook: true,
		bad:       fields{labelsPath: "{tier: 'no value'}"},
		want:      []string{`spec.switches.template.metadata.labels: Invalid value: "no value": a valid label must be an empty string or consist of alphanumeric characters`},
	},
	{
		reason: "a template has short label values",
		bad:    fields{labelsPath: "{tier: " + long + "}"},
		want:   []string{`spec.switches.template.metadata.labels.tier: Too long: may not be more than 63 bytes`},
	},
	{
		reason:    "an annotation has a name",
		byWebhook: true,
		bad:       fields{annotationsPath: "{'a note': x}"},
		want:      []string{`spec.switches.template.metadata.annotations: Invalid value: "a note": name part must consist of alphanumeric characters`},
	},
	{
		reason: "an annotation is a text",
		bad:    fields{annotationsPath: "{note: 1}"},
		want:   []string{`spec.switches.template.metadata.annotations.note: Invalid value: "integer": spec.switches.template.metadata.annotations.note in body must be of type string: "integer"`},
	},
	{
		reason:    "annotations have a limit",
		byWebhook: true,
		bad:       fields{annotationsPath: "{note: " + strings.Repeat("x", 256<<10) + "}"},
		want:      []string{`spec.switches.template.metadata.annotations: Too long: may not be more than 262144 bytes`},
	},
	{
		reason: "the schema says all at once",
		bad:    fields{"spec.switches.count": "0", "spec.position": "sideways", "spec.flip.delaySeconds": "-1", "spec.flip.intervalSeconds": "86401"},
		want:   []string{`spec.switches.count: Invalid value: 0`, `spec.position: Unsupported value: "sideways"`, `spec.flip.delaySeconds: Invalid value: -1`, `spec.flip.intervalSeconds: Invalid value: 86401`},
	},
	{
		reason: "the static rules say all at once",
		bad:    fields{"spec.switches.selector": "{matchLabels: {tier: front}, matchExpressions: [{key: tier, operator: In, values: [back]}, {key: size, operator: Exists, values: [big]}]}", labelsPath: "{tier: middle}"},
		want:   []string{`spec.switches.selector.matchExpressions: Invalid value: selector contradicts itself`, `spec.switches.selector.matchExpressions[1].values: Invalid value: size Exists`, `spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchLabels tier=front`, `spec.switches.template.metadata.labels: Invalid value: tier=middle does not satisfy matchExpressions: tier In (back)`, `spec.switches.template.metadata.labels: Invalid value: size is missing`},
	},
	{
		reason:    "the webhook says all at once",
		byWebhook: true,
		bad:       fields{"spec.switches.count": "101", labelsPath: "{'a tier': 'no value'}", annotationsPath: "{'a note': x}"},
		want:      []string{`spec.switches.count: Invalid value: 101: must be at most 100`, `spec.switches.template.metadata.labels: Invalid value: "a tier"`, `spec.switches.template.metadata.labels: Invalid value: "no value"`, `spec.switches.template.metadata.annotations: Invalid value: "a note"`},
	},
}

// TestBadMachinesAreRefused creates bad Machines, and makes good ones bad.
func TestBadMachinesAreRefused(t *testing.T) {
	shared(t)
	namespace := newNamespace(t)
	for i, test := range refusals {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			for _, version := range []string{beta, alpha} {
				name := fmt.Sprintf("bad-%d-%s", i, version)
				if !test.onlyUpdate {
					refuseCreate(t, test, version, namespace, name)
				}
				refuseUpdate(t, test, version, namespace, name)
			}
		})
	}
}

func refuseCreate(t *testing.T, test refusal, version, namespace, name string) {
	t.Helper()
	err := admin(t).Create(t.Context(), pausedMachine(t, version, namespace, name, test.base, test.bad))
	checkRefusal(t, "create in "+version, err, version, test.want)
	checkRefuser(t, err, test.byWebhook)
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := admin(t).Get(t.Context(), key, &v1beta1.Machine{}); !apierrors.IsNotFound(err) {
		t.Errorf("create in %s: afterwards reading it says: %v", version, err)
	}
}

func refuseUpdate(t *testing.T, test refusal, version, namespace, name string) {
	t.Helper()
	if err := admin(t).Create(t.Context(), pausedMachine(t, version, namespace, name, test.base)); err != nil {
		t.Fatal(err)
	}
	before := getMachine(t, namespace, name)
	err := update(t, version, namespace, name, test.bad)
	want := test.want
	if test.onUpdate == nil {
		checkRefuser(t, err, test.byWebhook)
	} else {
		want = test.onUpdate
	}
	checkRefusal(t, "update in "+version, err, version, want)
	if diff := cmp.Diff(before, getMachine(t, namespace, name)); diff != "" {
		t.Errorf("update in %s changed (-before +after):\n%s", version, diff)
	}
}

// update sets fields of a Machine in a version.
func update(t *testing.T, version, namespace, name string, set fields, options ...client.PatchOption) error {
	t.Helper()
	u := pausedMachine(t, version, namespace, name, set)
	u.SetAnnotations(nil) // leaves those that are there
	raw, err := u.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return admin(t).Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", raw), options...)
}

func checkRefusal(t *testing.T, how string, err error, version string, want []string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s is not refused", how)
		return
	}
	for _, part := range want {
		if part = in(version, part); !hasWording(t, err.Error(), part) {
			t.Errorf("%s: the message\n%.2000s\nlacks\n%s", how, err, part)
		}
	}
}

const denied = `admission webhook "machine.useless.container.training" denied the request`

func checkRefuser(t *testing.T, err error, byWebhook bool) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), denied) != byWebhook {
		t.Errorf("it is not as expected that the webhook refuses (%v): %.2000s", byWebhook, err)
	}
}

// TestEdgesAreAccepted has the values next to those that are refused.
func TestEdgesAreAccepted(t *testing.T) {
	shared(t)
	namespace := newNamespace(t)
	for i, test := range []struct {
		reason     string
		onlyCreate bool
		name       string
		good       fields
	}{
		{reason: "a Machine has a switch", good: fields{"spec.switches.count": "1"}},
		{reason: "the operator allows 100", good: fields{"spec.switches.count": "100"}},
		{reason: "no delay", good: fields{"spec.flip.delaySeconds": "0"}},
		{reason: "a delay of a day", good: fields{"spec.flip.delaySeconds": "86400"}},
		{reason: "no interval", good: fields{"spec.flip.intervalSeconds": "0"}},
		{reason: "an interval of a day", good: fields{"spec.flip.intervalSeconds": "86400"}},
		{reason: "position up", good: fields{"spec.position": "up"}},
		{reason: "the longest label value", onlyCreate: true, name: strings.Repeat("n", 63)},
		{reason: "a name with dots", onlyCreate: true, name: "a.b-c.d"},
		{reason: "a name that the API server makes", onlyCreate: true, good: fields{"metadata.name": "null", "metadata.generateName": "made-"}},
		{reason: "the default selector, said again", good: fields{labelsPath: "{machine: accepted}"}, name: "accepted"},
		{reason: "matchLabels, said again", onlyCreate: true, good: fields{"spec.switches.selector": "{matchLabels: {tier: front}}", labelsPath: "{tier: front, colour: red}"}},
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

// compareGood checks that a Machine has what was set.
func compareGood(t *testing.T, u *unstructured.Unstructured, good fields) {
	t.Helper()
	want := &unstructured.Unstructured{Object: map[string]any{}}
	want.SetAPIVersion(u.GetAPIVersion())
	good.setIn(t, want)
	for path := range good {
		path = in(u.GroupVersionKind().Version, path)
		if path == "metadata.name" {
			continue // made by the API server
		}
		if diff := cmp.Diff(at(want, path), at(u, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// TestKubectlShowsEveryProblem creates a Machine that has everything wrong that only the webhook knows.
func TestKubectlShowsEveryProblem(t *testing.T) {
	shared(t)
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
			t.Errorf("a bad Machine is created in %s", version)
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

// TestScaleIsChecked scales a Machine to what it may not be.
func TestScaleIsChecked(t *testing.T) {
	shared(t)
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
				t.Errorf("kubectl scale to %s in %s: %v, with the message\n%s\nwhich lacks\n%s", replicas, version, err, stderr, want)
			}
		}
	}
	if diff := cmp.Diff(before, getMachine(t, namespace, "m")); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

// TestOverlappingSelectorsWarn reads kubectl's standard error.
func TestOverlappingSelectorsWarn(t *testing.T) {
	shared(t)
	namespace := newNamespace(t)
	// Those that are there are seen by the operator, or there would be no switches.
	createMachine(t, namespace, "plain", nil)
	createMachine(t, namespace, "front", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: map[string]v1beta1.LabelValue{"tier": "front"}}
	})
	for _, name := range []string{"plain", "front"} {
		waitForPositions(t, namespace, name, "d", 10*time.Second)
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
			want: "selector tier=front overlaps that of Machine front, tier=front: either may adopt a Switch that matches both",
		},
		{
			reason: "a wider selector", selector: `{matchExpressions: [{key: tier, operator: NotIn, values: [back]}]}`,
			want: "selector tier notin (back) overlaps that of Machine front, tier=front: either may adopt a Switch that matches both",
		},
		{
			reason: "the default selector of another", selector: `{matchLabels: {machine: plain}}`,
			want: "selector machine=plain overlaps that of Machine plain, machine=plain: either may adopt a Switch that matches both",
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			for _, version := range []string{beta, alpha} {
				raw, err := pausedMachine(t, version, namespace, fmt.Sprintf("m-%d-%s", i, version), fields{"spec.switches.selector": test.selector}).MarshalJSON()
				if err != nil {
					t.Fatal(err)
				}
				// They overlap each other in both versions, so none stays.
				_, stderr, err := kubectl(t, string(raw), "create", "--dry-run=server", "-f", "-")
				var got []string
				for line := range strings.Lines(stderr) {
					if !strings.Contains(line, "deprecated") {
						got = append(got, strings.TrimSuffix(strings.TrimPrefix(line, "Warning: "), "\n"))
					}
				}
				if err != nil || strings.Join(got, "\n") != test.want {
					t.Errorf("create in %s: %v, with %q on standard error, not %q", version, err, got, test.want)
				}
			}
		})
	}
	t.Run("a Machine whose name another selects", func(t *testing.T) {
		t.Parallel()
		other := createMachine(t, namespace, "other", func(spec *v1beta1.MachineSpec) {
			spec.Switches.Selector = &v1beta1.LabelSelector{MatchLabels: map[string]v1beta1.LabelValue{"machine": "late"}}
		})
		waitForPositions(t, namespace, other.Name, "d", 10*time.Second)
		_, stderr, err := kubectl(t, "{apiVersion: useless.container.training/v1beta1, kind: Machine, metadata: {name: late}}", "create", "-n", namespace, "-f", "-")
		if want := "Warning: selector machine=late overlaps that of Machine other, machine=late: "; err != nil || !strings.Contains(stderr, want) {
			t.Errorf("%v, with %q on standard error, which lacks %q", err, stderr, want)
		}
		getMachine(t, namespace, "late") // a warning is no refusal
	})
}

// TestStaticRulesAgreeWithTheWebhook asks the API server's static rules and the webhook about the same Machines, made of
// every combination of some selectors and templates.
func TestStaticRulesAgreeWithTheWebhook(t *testing.T) {
	shared(t)
	namespace := newNamespace(t)
	ask := webhookClient(t)
	for _, template := range []string{
		"null", "{a: red}", "{a: blue}", "{b: big}", "{a: red, b: big}", "{machine: m}", "{machine: another}", "{machine: another, a: red}",
	} {
		for _, selector := range selectors() {
			t.Run(selector+" with "+template, func(t *testing.T) {
				t.Parallel()
				said := map[string]bool{}
				for _, version := range []string{beta, alpha} {
					u := pausedMachine(t, version, namespace, "m", fields{"spec.switches.selector": selector, labelsPath: template})
					err := admin(t).Create(t.Context(), u, client.DryRunAll)
					if err != nil && !apierrors.IsInvalid(err) {
						t.Fatal(err)
					}
					// The webhook is asked about what the static rules let through.
					said["static rules in "+version] = err == nil || strings.Contains(err.Error(), denied)
				}
				m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "m"}}
				u := pausedMachine(t, beta, namespace, "m", fields{"spec.switches.selector": selector, labelsPath: template, "spec.switches.count": "1"})
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, m); err != nil {
					t.Fatal(err)
				}
				response := ask(t, nil, m)
				for who, allow := range said {
					if allow != response.Allowed {
						t.Errorf("the %s allow it: %v; the webhook: %v, %v", who, allow, response.Allowed, response.Result)
					}
				}
			})
		}
	}
}

// TestSelectorsAreImmutableByBothRules turns every selector into every other.
func TestSelectorsAreImmutableByBothRules(t *testing.T) {
	shared(t)
	namespace := newNamespace(t)
	ask := webhookClient(t)
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
			if response := ask(t, old, m); response.Allowed != (i == j) {
				t.Errorf("the webhook lets %s become %s: %v, %v", from, to, response.Allowed, response.Result)
			}
			for _, version := range []string{beta, alpha} {
				m := object(t, mustKubectl(t, "", "get", resource("machines", version), name, "-n", namespace, "-o", "json"))
				fields{"spec.switches.selector": to}.setIn(t, m)
				err := admin(t).Update(t.Context(), m, client.DryRunAll)
				if want := in(version, selectorIsImmutable); (err == nil) != (i == j) || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("the static rules in %s let %s become %s: %v", version, from, to, err)
				}
			}
		}
	}
}

// selectors are combinations of matchLabels and matchExpressions, some of which do not parse or contradict themselves.
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

// webhookClient calls the operator's webhook as the API server does.
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

// TestWithoutWebhook runs the operator with its webhooks away: nobody serves their port.
func TestWithoutWebhook(t *testing.T) {
	alone(t)
	namespace, doomed := newNamespace(t), newNamespace(t)
	stop := exclusive(t, operatorOptions{})
	for _, in := range []string{namespace, doomed} {
		for _, version := range []string{beta, alpha} {
			mustKubectl(t, fmt.Sprintf("{apiVersion: useless.container.training/%s, kind: Machine, metadata: {name: made-as-%[1]s}}", version),
				"create", "-n", in, "-f", "-")
			waitForPositions(t, in, "made-as-"+version, "d", 10*time.Second)
		}
	}
	stop()
	exclusive(t, operatorOptions{noWebhooks: true})
	mustKubectl(t, "", "delete", "namespace", doomed, "--wait=false") // takes longest

	for _, test := range refusals {
		t.Run("refused: "+test.reason, func(t *testing.T) {
			checkWithoutWebhook(t, test, namespace)
		})
	}
	t.Run("what is right is refused, too, because nobody can say so", func(t *testing.T) {
		testRightIsRefused(t, namespace)
	})
	t.Run("Machines are read as v1beta1", func(t *testing.T) {
		// As v1alpha1, only what the API server has converted before can be read.
		for _, version := range []string{beta, alpha} {
			u := read(t, beta, "machines", namespace, "made-as-"+version)
			if got := at(u, "status.positions"); got != "d" {
				t.Errorf("positions are %v", got)
			}
		}
		if got := strings.Count(mustKubectl(t, "", "get", "machines", "-n", namespace, "-o", "name"), "machine.useless"); got != 2 {
			t.Errorf("there are %d Machines, not 2", got)
		}
	})
	t.Run("Switches are written in both versions", func(t *testing.T) {
		writeSwitch(t, namespace, alpha, beta)
	})
	for _, version := range []string{beta, alpha} {
		t.Run("a Machine that was made as "+version+" lives on", func(t *testing.T) {
			testLivesOn(t, namespace, "made-as-"+version)
		})
	}
	t.Run("a namespace with Machines is deleted", func(t *testing.T) {
		mustKubectl(t, "", "wait", "namespace", doomed, "--for=delete", "--timeout=60s")
	})
}

// checkWithoutWebhook checks that what the API server refuses alone is refused for the same reasons, and that the rest
// is not let through.
func checkWithoutWebhook(t *testing.T, test refusal, namespace string) {
	t.Helper()
	want := test.want
	if test.byWebhook {
		want = []string{failedCalling}
	}
	if !test.onlyUpdate {
		err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, "bad", test.base, test.bad))
		checkRefusal(t, "create", err, beta, want)
	}
	if test.base == nil { // which is what the Machine has
		if test.onUpdate != nil {
			want = test.onUpdate
		}
		err := update(t, beta, namespace, "made-as-v1beta1", test.bad)
		checkRefusal(t, "update", err, beta, want)
	}
}

const (
	failedCalling      = `failed calling webhook "machine.useless.container.training"`
	failedCallingScale = `failed calling webhook "machine-scale.useless.container.training"`
)

func testRightIsRefused(t *testing.T, namespace string) {
	before := getMachine(t, namespace, "made-as-v1beta1")
	for what, test := range map[string]struct {
		manifest string
		args     []string
		want     string
	}{
		"create": {
			manifest: "{apiVersion: useless.container.training/v1beta1, kind: Machine, metadata: {name: right}}",
			args:     []string{"create", "-f", "-"}, want: failedCalling,
		},
		"update": {args: []string{"patch", "machine", "made-as-v1beta1", "--type=merge", "-p", `{"spec": {"switches": {"count": 2}}}`}, want: failedCalling},
		"scale":  {args: []string{"scale", "machine", "made-as-v1beta1", "--replicas=2"}, want: failedCallingScale},
	} {
		_, stderr, err := kubectl(t, test.manifest, append(test.args, "-n", namespace)...)
		if err == nil || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: %v, with the message\n%s\nwhich lacks\n%s", what, err, stderr, test.want)
		}
	}
	if diff := cmp.Diff(before, getMachine(t, namespace, "made-as-v1beta1")); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

// testLivesOn changes everything about a Machine but its spec, has the operator work on it, and deletes it.
func testLivesOn(t *testing.T, namespace, name string) {
	mustKubectl(t, "", "label", "machine", name, "-n", namespace, "colour=red")
	mustKubectl(t, "", "annotate", "machine", name, "-n", namespace, "note=any")
	m := getMachine(t, namespace, name)
	if m.Labels["colour"] != "red" || m.Annotations["note"] != "any" {
		t.Errorf("has labels %v and annotations %v", m.Labels, m.Annotations)
	}

	// The operator writes its status: that of a switch which somebody turns up.
	turnUp(t, namespace, name+"-0")
	waitForPositions(t, namespace, name, "u", 10*time.Second)
	mustKubectl(t, "", "patch", "machine", name, "-n", namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"lastFlipTime": "2020-01-01T00:00:00.000000Z"}}`)

	mustKubectl(t, "", "delete", "machine", name, "-n", namespace, "--timeout=20s")
	eventually(t, 20*time.Second, func() (bool, string) {
		err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name + "-0"}, &v1beta1.Switch{})
		return apierrors.IsNotFound(err), fmt.Sprintf("reading its switch says: %v", err)
	})
}

// TestLowerLimitLeavesMachinesWritable restarts the operator with a limit that Machines exceed.
func TestLowerLimitLeavesMachinesWritable(t *testing.T) {
	alone(t)
	namespace := newNamespace(t)
	stop := exclusive(t, operatorOptions{maxSwitches: 100})
	for _, name := range []string{"large", "doomed"} {
		createMachine(t, namespace, name, func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 50 })
		waitForPositions(t, namespace, name, strings.Repeat("d", 50), 20*time.Second)
	}
	stop()
	exclusive(t, operatorOptions{maxSwitches: 10})

	err := admin(t).Create(t.Context(), pausedMachine(t, beta, namespace, "new", fields{"spec.switches.count": "11"}))
	checkRefusal(t, "create", err, beta, []string{"spec.switches.count: Invalid value: 11: must be at most 10, which is the operator's --max-switches"})
	mustKubectl(t, "", "label", "machine", "large", "-n", namespace, "colour=red")
	if got := getMachine(t, namespace, "large").Labels["colour"]; got != "red" {
		t.Errorf("the label is %q", got)
	}
	mustKubectl(t, "", "delete", "machine", "doomed", "-n", namespace, "--timeout=20s") // its finalizer goes

	for _, version := range []string{beta, alpha} {
		for seconds, field := range map[string]string{"0": "spec.flip.delaySeconds", "1": "spec.flip.intervalSeconds"} {
			if err := update(t, version, namespace, "large", fields{field: seconds, labelsPath: "{" + version + ": changed}"}); err != nil {
				t.Errorf("%s in %s: %v", field, version, err)
			}
		}
	}
	// The operator takes notice and writes the status.
	waitForPositions(t, namespace, "large", strings.Repeat("d", 50), 10*time.Second)
	turnUp(t, namespace, "large-7")
	eventually(t, 10*time.Second, func() (bool, string) {
		m := getMachine(t, namespace, "large")
		return m.Status.LastFlipTime != nil && m.Status.Switches.Down == 50, fmt.Sprintf("status is %+v", m.Status)
	})

	for _, step := range []struct {
		count   int
		refused bool
	}{{51, true}, {40, false}, {41, true}, {45, true}, {40, false}, {5, false}, {11, true}, {10, false}, {1, false}} {
		setCount(t, namespace, "large", step.count, step.refused)
	}
	waitForPositions(t, namespace, "large", "d", 10*time.Second)
}

// setCount sets a Machine's count in every way there is, where the operator allows 10.
func setCount(t *testing.T, namespace, name string, count int, refused bool) {
	t.Helper()
	before := getMachine(t, namespace, name).Spec.Switches.Count
	rule := fmt.Sprintf("Invalid value: %d: must be at most 10, which is the operator's --max-switches", count)
	check := func(how string, err error, message, path string) {
		t.Helper()
		if (err != nil) != refused || refused && !strings.Contains(message, path+": "+rule) {
			t.Errorf("from %d to %d, %s: %v, with the message\n%s", before, count, how, err, message)
		}
	}
	for _, version := range []string{beta, alpha} {
		const path = "spec.switches.count"
		err := update(t, version, namespace, name, fields{path: fmt.Sprint(count)})
		check("by an update in "+version, err, fmt.Sprint(err), in(version, path))
	}
	_, stderr, err := kubectl(t, "", "scale", "machine", name, "-n", namespace, fmt.Sprintf("--replicas=%d", count))
	check("by kubectl scale", err, stderr, "spec.replicas")

	want := int32(count)
	if refused {
		want = before
	}
	if got := getMachine(t, namespace, name).Spec.Switches.Count; got != want {
		t.Errorf("from %d to %d: the count is %d", before, count, got)
	}
}
