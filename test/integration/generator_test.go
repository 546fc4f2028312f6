// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

type schemaProps = apiextensionsv1.JSONSchemaProps

// crdValidator validates objects against the schema and the CEL rules of one version of a CustomResourceDefinition. It
// uses the API server's code, but no API server.
type crdValidator struct {
	schema     *schemaProps
	structural *schema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
}

// newCRDValidator reads the CustomResourceDefinition crd from config/crd/bases.
func newCRDValidator(t *testing.T, crd, version string) crdValidator {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "config", "crd", "bases", crd+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, definition); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == version
	})
	if i < 0 {
		t.Fatalf("%s has no version %s", crd, version)
	}
	v := crdValidator{schema: definition.Spec.Versions[i].Schema.OpenAPIV3Schema}
	internal := &apiextensions.JSONSchemaProps{}
	err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.schema, internal, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v.structural, err = schema.NewStructural(internal); err != nil {
		t.Fatal(err)
	}
	if v.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		t.Fatal(err)
	}
	v.rules = cel.NewValidator(v.structural, true, celconfig.PerCallLimit)
	return v
}

// validate returns the errors of an object, or of an update of old if old is not nil. Like the API server, it checks
// the CEL rules only if the object satisfies the schema. It sets the defaults in object.
func (v crdValidator) validate(ctx context.Context, object, old map[string]any) field.ErrorList {
	defaulting.Default(object, v.structural)
	errs := validation.ValidateCustomResource(nil, object, v.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, v.structural, object)...)
	if len(errs) > 0 || v.rules == nil {
		return errs
	}
	var before any // for a create, Validate needs an untyped nil, not a nil map
	if old != nil {
		before = old
	}
	broken, _ := v.rules.Validate(ctx, nil, v.structural, object, before, celconfig.RuntimeCELCostBudget)
	return broken
}

// generator generates values that satisfy a schema. It also generates changes that make these values invalid.
type generator struct {
	*testing.T
	*rand.Rand
}

// samples maps each pattern of the schemas to texts that match the pattern. The test fails if it needs a pattern that
// samples does not have.
var samples = map[string][]string{
	`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`: {"A", "Scaled", "a_b,c:9", strings.Repeat("R", 1024)},
	`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`: {
		"Ready", "example.com/Scaled", "0", "a-b.c-d/E_F.g",
	},
	`^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`: {
		"1", "500m", "0.5", "4G", "512Mi", "1e3", "+2", "40G", ".5", "3.", "1n", "7E", "0", "-1", "0m", "-4Gi",
	},
}

// labelKeys and labelValues are few, so that selectors and templates often use the same labels.
var (
	labelKeys   = []string{"tier", "team", "example.com/room", "machine"}
	labelValues = []string{"", "front", "back", "a", "A-b_c.9", strings.Repeat("v", 63)}
)

// value generates a value that satisfies a schema. Optional fields are often absent.
func (g generator) value(s *schemaProps) any {
	switch {
	case s.XIntOrString && g.IntN(3) == 0:
		return g.Int64N(5)
	case s.Pattern != "":
		return g.sample(s.Pattern)
	case len(s.Enum) > 0:
		return strings.Trim(string(s.Enum[g.IntN(len(s.Enum))].Raw), `"`)
	case s.Type == "object":
		return g.object(s)
	case s.Type == "array":
		values := make([]any, g.IntN(3))
		for i := range values {
			values[i] = g.value(s.Items.Schema)
		}
		return values
	case s.Type == "integer":
		return g.integer(s)
	case s.Format == "date-time":
		return time.Unix(g.Int64N(4e9), g.Int64N(1e6)*1000).UTC().Format(time.RFC3339Nano)
	case s.Type == "string":
		values := slices.DeleteFunc(slices.Clone(labelValues), func(text string) bool {
			return s.MinLength != nil && int64(len(text)) < *s.MinLength
		})
		return values[g.IntN(len(values))]
	}
	g.Fatalf("cannot generate a value of type %q", s.Type)
	return nil
}

func (g generator) sample(pattern string) string {
	g.Helper()
	known, ok := samples[pattern]
	if !ok {
		g.Fatalf("there are no samples of %s", pattern)
	}
	return known[g.IntN(len(known))]
}

func (g generator) object(s *schemaProps) map[string]any {
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		switch {
		case slices.Contains([]string{"apiVersion", "kind", "metadata"}, name):
		case name == "key": // the schema does not say that this field is a label key
			object[name] = labelKeys[g.IntN(len(labelKeys))]
		case slices.Contains(s.Required, name) || g.IntN(5) > 1:
			object[name] = g.value(&property)
		}
	}
	if s.AdditionalProperties != nil {
		for range g.IntN(4) {
			object[labelKeys[g.IntN(len(labelKeys))]] = g.value(s.AdditionalProperties.Schema)
		}
	}
	return object
}

// integer generates an integer in the range of a schema, often the minimum or the maximum.
func (g generator) integer(s *schemaProps) int64 {
	least, most := int64(0), int64(1<<31-1)
	if s.Minimum != nil {
		least = int64(*s.Minimum)
	}
	if s.Maximum != nil {
		most = int64(*s.Maximum)
	}
	switch g.IntN(6) {
	case 0:
		return least
	case 1:
		return most
	}
	return least + g.Int64N(min(most-least, 100)+1)
}

// breakage is a change of one value that usually makes an object invalid.
type breakage struct {
	path  []any // names and indexes
	value any   // the new value, or a removal
}

// removal is the value of a breakage that removes a field.
type removal struct{}

// unknownField is the name of a field that no schema has.
const unknownField = "unknown"

func (b breakage) String() string {
	if b.value == (removal{}) {
		return "without " + dotted(b.path)
	}
	return fmt.Sprintf("%s: %.100v", dotted(b.path), b.value)
}

// dotted formats a path like the API server: spec.items[0].name.
func dotted(path []any) string {
	var text strings.Builder
	for i, element := range path {
		if index, ok := element.(int); ok {
			fmt.Fprintf(&text, "[%d]", index)
			continue
		}
		if i > 0 {
			text.WriteByte('.')
		}
		fmt.Fprint(&text, element)
	}
	return text.String()
}

// breakages returns all breakages of a value with the given schema, and of its nested values.
func (g generator) breakages(s *schemaProps, value any, path []any) []breakage {
	var all []breakage
	for _, invalid := range g.invalidValues(s) {
		all = append(all, breakage{path, invalid})
	}
	switch value := value.(type) {
	case map[string]any:
		return append(all, g.objectBreakages(s, value, path)...)
	case []any:
		for i := range value {
			all = append(all, g.breakages(s.Items.Schema, value[i], below(path, i))...)
		}
		if len(value) > 0 && s.MaxItems != nil {
			all = append(all, breakage{path, slices.Repeat(value[:1], int(*s.MaxItems)+1)})
		}
		if len(value) > 0 && s.XListType != nil && *s.XListType == "map" {
			all = append(all, breakage{path, append(slices.Clone(value), value[0])})
		}
	}
	return all
}

// objectBreakages returns the breakages of an object's fields.
func (g generator) objectBreakages(s *schemaProps, object map[string]any, path []any) []breakage {
	var all []breakage
	for _, name := range s.Required {
		all = append(all, breakage{below(path, name), removal{}})
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if property, ok := s.Properties[name]; ok {
			all = append(all, g.breakages(&property, object[name], below(path, name))...)
		} else if s.AdditionalProperties != nil {
			all = append(all, g.breakages(s.AdditionalProperties.Schema, object[name], below(path, name))...)
		}
	}
	if s.MaxProperties != nil {
		all = append(all, breakage{path, mapOf(int(*s.MaxProperties) + 1)})
	}
	if s.AdditionalProperties == nil {
		all = append(all, breakage{below(path, unknownField), "?"})
	}
	return all
}

func below(path []any, element any) []any { return append(slices.Clone(path), element) }

// invalidValues returns values that the schema does not allow.
func (g generator) invalidValues(s *schemaProps) []any {
	all := slices.Clone(wrongTypes[s.Type])
	if s.XIntOrString {
		all = []any{true, "four", "1 G", 1.5, "", "4GB"}
	}
	if s.Format == "int32" {
		all = append(all, int64(1)<<40)
	}
	if s.Minimum != nil {
		all = append(all, int64(*s.Minimum)-1)
	}
	if s.Maximum != nil {
		all = append(all, int64(*s.Maximum)+1)
	}
	if s.MaxLength != nil {
		all = append(all, strings.Repeat("x", int(*s.MaxLength)+1))
	}
	if len(s.Enum) > 0 || s.Format == "date-time" || s.Pattern != "" {
		all = append(all, "?", " ", "Sideways!")
	}
	return all
}

// wrongTypes maps each type to values of other types.
var wrongTypes = map[string][]any{
	"integer": {"three", 1.5, true, []any{}},
	"string":  {int64(7), true, map[string]any{}},
	"object":  {"text", int64(1), []any{}},
	"array":   {"text", map[string]any{}},
}

// mapOf returns a map with n keys.
func mapOf(n int) map[string]any {
	all := map[string]any{}
	for i := range n {
		all[fmt.Sprintf("key-%d", i)] = "value"
	}
	return all
}

// in applies the breakage to a copy of an object.
func (b breakage) in(object map[string]any) map[string]any {
	broken := runtime.DeepCopyJSON(object)
	var at any = broken
	for _, element := range b.path[:len(b.path)-1] {
		if index, ok := element.(int); ok {
			at = at.([]any)[index]
		} else {
			at = at.(map[string]any)[element.(string)]
		}
	}
	switch last := b.path[len(b.path)-1].(type) {
	case int:
		at.([]any)[last] = b.value
	case string:
		if at.(map[string]any)[last] = b.value; b.value == (removal{}) {
			delete(at.(map[string]any), last)
		}
	}
	return broken
}
