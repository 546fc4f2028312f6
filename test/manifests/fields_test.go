// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestShortNames checks the short names and the category of each kind. TestKubectlNames in test/integration uses them
// on a real API server, where another kind could have the same short name.
func TestShortNames(t *testing.T) {
	got := map[string][]string{}
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		got[crd.Spec.Names.Kind] = crd.Spec.Names.ShortNames
		if diff := cmp.Diff([]string{"useless"}, crd.Spec.Names.Categories); diff != "" {
			t.Errorf("%s: categories (-want +got)\n%s", crd.Name, diff)
		}
	}
	want := map[string][]string{"Machine": {"um"}, "Switch": {"usw"}, "VirtualMachine": {"vm", "vms"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("short names (-want +got)\n%s", diff)
	}
}

// TestFieldDescriptions checks the descriptions of fields, which kubectl explain shows. They must contain the range,
// the default, the unit and an example. TestKubectlExplain in test/integration runs kubectl explain.
func TestFieldDescriptions(t *testing.T) {
	for _, crd := range objects[apiextensionsv1.CustomResourceDefinition](t, "CustomResourceDefinition") {
		for _, version := range crd.Spec.Versions {
			root := version.Schema.OpenAPIV3Schema
			for _, name := range []string{"spec", "status"} {
				path := strings.Join([]string{crd.Spec.Names.Kind, version.Name, name}, ".")
				checkDescriptions(t, path, root.Properties[name])
			}
		}
	}
}

func checkDescriptions(t *testing.T, path string, field apiextensionsv1.JSONSchemaProps) {
	t.Helper()
	for _, missing := range missingIn(path, field) {
		t.Errorf("the description of %s lacks %s:\n%s", path, missing, field.Description)
	}
	properties := field.Properties
	if field.Items != nil && !strings.HasSuffix(path, ".conditions") { // Kubernetes describes the fields of a condition
		properties = field.Items.Schema.Properties
	}
	for name, property := range properties {
		checkDescriptions(t, path+"."+name, property)
	}
}

// units maps a pattern for the paths of fields to a pattern for their unit.
var units = map[string]string{
	`Seconds$`:    `\bin seconds\b`,
	`\.cpu$`:      `\bCPUs\b|\bin percent\b`,
	`\.memory$`:   `\bin bytes\b|\bin percent\b`,
	`\.rootDisk$`: `\bin bytes\b`,
}

// missingIn returns the required parts that a field's description lacks. Each limit, the default and the unit are
// required. An example is required, except for objects and enums.
func missingIn(path string, field apiextensionsv1.JSONSchemaProps) []string {
	var missing []string
	description := strings.Join(strings.Fields(field.Description), " ") // without line breaks
	require := func(part, pattern string) {
		if !regexp.MustCompile(pattern).MatchString(description) {
			missing = append(missing, part)
		}
	}
	for _, limit := range limits(field) {
		require("the limit "+limit, `\b`+limit+`\b`)
	}
	if field.Default != nil && string(field.Default.Raw) != "{}" {
		value := strings.Trim(string(field.Default.Raw), `"`)
		require("the default "+value, `The default is `+regexp.QuoteMeta(value)+`\.`)
	}
	for fields, unit := range units {
		if regexp.MustCompile(fields).MatchString(path) {
			require("the unit, which matches "+unit, unit)
		}
	}
	object := len(field.Properties) > 0 || field.Items != nil && len(field.Items.Schema.Properties) > 0
	if !object && len(field.Enum) == 0 {
		require("an example", `For example, |such as `)
	}
	return missing
}

// limits returns the limits in a field's schema. It omits the maximum value of int32, which does not limit the field.
func limits(field apiextensionsv1.JSONSchemaProps) []string {
	var found []string
	for _, limit := range []*float64{field.Minimum, field.Maximum} {
		if limit != nil && *limit != math.MaxInt32 {
			found = append(found, strconv.FormatFloat(*limit, 'f', -1, 64))
		}
	}
	for _, limit := range []*int64{field.MinLength, field.MaxLength, field.MaxItems, field.MaxProperties} {
		if limit != nil {
			found = append(found, strconv.FormatInt(*limit, 10))
		}
	}
	return found
}
