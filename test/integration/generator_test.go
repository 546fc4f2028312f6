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

// A judge says what is wrong with an object, by the schema and the rules of its version alone: with the API server's own code,
// and without an API server.
type judge struct {
	schema     *schemaProps
	structural *schema.Structural
	validator  validation.SchemaValidator
	rules      *cel.Validator
}

// newJudge reads a CustomResourceDefinition as it is installed.
func newJudge(t *testing.T, crd, version string) judge {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "config", "crd", "bases", crd+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, definition); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	if i < 0 {
		t.Fatalf("%s has no version %s", crd, version)
	}
	j := judge{schema: definition.Spec.Versions[i].Schema.OpenAPIV3Schema}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(j.schema, internal, nil); err != nil {
		t.Fatal(err)
	}
	if j.structural, err = schema.NewStructural(internal); err != nil {
		t.Fatal(err)
	}
	if j.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		t.Fatal(err)
	}
	j.rules = cel.NewValidator(j.structural, true, celconfig.PerCallLimit)
	return j
}

// problems are what is wrong with an object, or with the change of an old one into it. As in the API server, an object that
// does not fit its schema is not shown to the rules. Defaults are filled in.
func (j judge) problems(ctx context.Context, object, old map[string]any) field.ErrorList {
	defaulting.Default(object, j.structural)
	errs := validation.ValidateCustomResource(nil, object, j.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, j.structural, object)...)
	if len(errs) > 0 || j.rules == nil {
		return errs
	}
	var before any // not a map that is nil
	if old != nil {
		before = old
	}
	broken, _ := j.rules.Validate(ctx, nil, j.structural, object, before, celconfig.RuntimeCELCostBudget)
	return broken
}

// A generator makes values that fit a schema, and knows how to make them not fit.
type generator struct {
	*testing.T
	*rand.Rand
}

// samples are texts by the pattern that they have to match. One that is not here fails the test.
var samples = map[string][]string{
	`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`: {"A", "Scaled", "a_b,c:9", strings.Repeat("R", 1024)},
	`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$`: {
		"Ready", "example.com/Scaled", "0", "a-b.c-d/E_F.g",
	},
	`^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`: {
		"1", "500m", "0.5", "4G", "512Mi", "1e3", "+2", "40G", ".5", "3.", "1n", "7E", "0", "-1", "0m", "-4Gi",
	},
}

// Few labels, so that selectors and templates often mean the same ones.
var (
	labelKeys   = []string{"tier", "team", "example.com/room", "machine"}
	labelValues = []string{"", "front", "back", "a", "A-b_c.9", strings.Repeat("v", 63)}
)

// value is one that fits a schema. What is optional is often absent.
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
		values := slices.DeleteFunc(slices.Clone(labelValues), func(text string) bool { return s.MinLength != nil && int64(len(text)) < *s.MinLength })
		return values[g.IntN(len(values))]
	}
	g.Fatalf("cannot make a value of type %q", s.Type)
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
		case name == "key": // of a label, which no schema can say
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

// integer is often one of the ends.
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

// A breakage is a value that does not fit where it is put.
type breakage struct {
	path  []any // of names and indexes
	value any   // or a removal
}

// A removal stands for a value that is absent.
type removal struct{}

// unknownField is in no schema.
const unknownField = "unknown"

func (b breakage) String() string {
	if b.value == (removal{}) {
		return "without " + dotted(b.path)
	}
	return fmt.Sprintf("%s: %.100v", dotted(b.path), b.value)
}

// dotted is a path as the API server writes it.
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

// breakages are all ways to break a value of a schema once.
func (g generator) breakages(s *schemaProps, value any, path []any) []breakage {
	var all []breakage
	for _, misfit := range g.misfits(s) {
		all = append(all, breakage{path, misfit})
	}
	switch value := value.(type) {
	case map[string]any:
		return append(all, g.broken(s, value, path)...)
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

// broken are all ways to break what an object has.
func (g generator) broken(s *schemaProps, object map[string]any, path []any) []breakage {
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
		all = append(all, breakage{path, many(int(*s.MaxProperties) + 1)})
	}
	if s.AdditionalProperties == nil {
		all = append(all, breakage{below(path, unknownField), "?"})
	}
	return all
}

func below(path []any, element any) []any { return append(slices.Clone(path), element) }

// misfits are values that fit no schema like this.
func (g generator) misfits(s *schemaProps) []any {
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

// wrongTypes are values by the type that they are not of.
var wrongTypes = map[string][]any{
	"integer": {"three", 1.5, true, []any{}},
	"string":  {int64(7), true, map[string]any{}},
	"object":  {"text", int64(1), []any{}},
	"array":   {"text", map[string]any{}},
}

func many(n int) map[string]any {
	all := map[string]any{}
	for i := range n {
		all[fmt.Sprintf("key-%d", i)] = "value"
	}
	return all
}

// in puts a breakage into a copy of an object.
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
