// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// X-descriptors define how a console shows a field. conditions and phase are x-descriptors. widget is the prefix of all
// others, except phase:reason.
const (
	widget     = "urn:alm:descriptor:com.tectonic.ui:"
	conditions = "urn:alm:descriptor:io.kubernetes.conditions"
	phase      = "urn:alm:descriptor:io.kubernetes.phase"
)

// acronyms are the words that displayName writes in capitals.
var acronyms = regexp.MustCompile(`(?i)\b(cpu|id)\b`)

type schema = apiextensionsv1.JSONSchemaProps

func specDescriptors(spec schema) []operatorsv1alpha1.SpecDescriptor {
	var descriptors []operatorsv1alpha1.SpecDescriptor
	eachField(spec, "", func(path string, field schema) {
		descriptors = append(descriptors, operatorsv1alpha1.SpecDescriptor{
			Path:         path,
			DisplayName:  displayName(path),
			Description:  field.Description,
			XDescriptors: inputs(path, field),
		})
	})
	return descriptors
}

func statusDescriptors(status schema) []operatorsv1alpha1.StatusDescriptor {
	var descriptors []operatorsv1alpha1.StatusDescriptor
	eachField(status, "", func(path string, field schema) {
		descriptor := operatorsv1alpha1.StatusDescriptor{
			Path: path, DisplayName: displayName(path), Description: field.Description,
		}
		switch {
		case isConditions(path):
			descriptor.XDescriptors = []string{conditions}
		case path == "phase":
			descriptor.XDescriptors = []string{phase}
		case path == "reason":
			descriptor.XDescriptors = []string{phase + ":reason"}
		case len(field.Properties) == 0:
			descriptor.XDescriptors = []string{widget + "text"}
		}
		descriptors = append(descriptors, descriptor)
	})
	return descriptors
}

// eachField calls visit for every field of a schema and then for its nested fields, except the fields of conditions.
// The fields of one object are sorted by name.
func eachField(parent schema, prefix string, visit func(path string, field schema)) {
	for _, name := range slices.Sorted(maps.Keys(parent.Properties)) {
		path, field := prefix+name, parent.Properties[name]
		visit(path, field)
		switch {
		case isConditions(path): // consoles show all conditions in one table
		case field.Items != nil:
			eachField(*field.Items.Schema, path+"[0].", visit)
		default:
			eachField(field, path+".", visit)
		}
	}
}

func isConditions(path string) bool { return path == "conditions" }

// inputs returns the x-descriptors of a spec field. They define the input widget for the field's type. For a nested
// field, one x-descriptor adds the field to the group of its parent field.
func inputs(path string, field schema) []string {
	var inputs []string
	switch {
	case len(field.Enum) > 0:
		for _, value := range field.Enum {
			inputs = append(inputs, widget+"select:"+strings.Trim(string(value.Raw), `"`))
		}
	case field.Type == "integer":
		inputs = append(inputs, widget+"number")
	case field.Type == "boolean":
		inputs = append(inputs, widget+"booleanSwitch")
	case field.Type == "string", field.XIntOrString:
		inputs = append(inputs, widget+"text")
	}
	if i := strings.LastIndex(path, "."); i >= 0 {
		parent, isArray := strings.CutSuffix(path[:i], "[0]")
		group := "fieldGroup:"
		if isArray {
			group = "arrayFieldGroup:"
		}
		inputs = append(inputs, widget+group+parent)
	}
	return inputs
}

// displayName returns a path in words: flip.delaySeconds becomes "Flip delay seconds".
func displayName(path string) string {
	var name strings.Builder
	for i, r := range strings.ReplaceAll(path, "[0]", "") {
		switch {
		case i == 0:
			name.WriteRune(unicode.ToUpper(r))
		case r == '.':
			name.WriteByte(' ')
		case unicode.IsUpper(r):
			name.WriteByte(' ')
			name.WriteRune(unicode.ToLower(r))
		default:
			name.WriteRune(r)
		}
	}
	return acronyms.ReplaceAllStringFunc(name.String(), strings.ToUpper)
}
