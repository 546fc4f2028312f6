// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func object(properties map[string]schema) schema {
	return schema{Type: "object", Properties: properties}
}

func array(items schema) schema {
	return schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &items}}
}

func TestSpecDescriptors(t *testing.T) {
	cases := map[string]struct {
		reason string
		field  schema
		want   []operatorsv1alpha1.SpecDescriptor
	}{
		"Number": {
			reason: "a camelCase name is split into words",
			field:  object(map[string]schema{"delaySeconds": {Type: "integer", Description: "delaySeconds is a time."}}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "delaySeconds", DisplayName: "Delay seconds", Description: "delaySeconds is a time.",
					XDescriptors: []string{widget + "number"}},
			},
		},
		"Choice": {
			reason: "an enum becomes a selection of all values",
			field: object(map[string]schema{"position": {Type: "string",
				Enum: []apiextensionsv1.JSON{{Raw: []byte(`"up"`)}, {Raw: []byte(`"down"`)}}}}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "position", DisplayName: "Position", XDescriptors: []string{widget + "select:up", widget + "select:down"}},
			},
		},
		"Quantity": {
			reason: "an int-or-string field becomes a text input",
			field:  object(map[string]schema{"memory": {XIntOrString: true}}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "memory", DisplayName: "Memory", XDescriptors: []string{widget + "text"}},
			},
		},
		"Acronym": {
			reason: "an acronym is written in capitals",
			field:  object(map[string]schema{"cpu": {Type: "integer"}}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "cpu", DisplayName: "CPU", XDescriptors: []string{widget + "number"}},
			},
		},
		"Nested": {
			reason: "the fields of an object form a group",
			field:  object(map[string]schema{"flip": object(map[string]schema{"now": {Type: "boolean"}})}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "flip", DisplayName: "Flip"},
				{Path: "flip.now", DisplayName: "Flip now",
					XDescriptors: []string{widget + "booleanSwitch", widget + "fieldGroup:flip"}},
			},
		},
		"Array": {
			reason: "the fields of an array item form a group",
			field:  object(map[string]schema{"rules": array(object(map[string]schema{"key": {Type: "string"}}))}),
			want: []operatorsv1alpha1.SpecDescriptor{
				{Path: "rules", DisplayName: "Rules"},
				{Path: "rules[0].key", DisplayName: "Rules key",
					XDescriptors: []string{widget + "text", widget + "arrayFieldGroup:rules"}},
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, specDescriptors(c.field)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestStatusDescriptors(t *testing.T) {
	got := statusDescriptors(object(map[string]schema{
		"conditions": array(object(map[string]schema{"type": {Type: "string"}})),
		"phase":      {Type: "string"},
		"reason":     {Type: "string"},
		"switches":   object(map[string]schema{"up": {Type: "integer"}}),
	}))
	want := []operatorsv1alpha1.StatusDescriptor{
		{Path: "conditions", DisplayName: "Conditions", XDescriptors: []string{conditions}},
		{Path: "phase", DisplayName: "Phase", XDescriptors: []string{phase}},
		{Path: "reason", DisplayName: "Reason", XDescriptors: []string{phase + ":reason"}},
		{Path: "switches", DisplayName: "Switches"},
		{Path: "switches.up", DisplayName: "Switches up", XDescriptors: []string{widget + "text"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
