// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// A Kind is what a server has objects of.
type Kind struct {
	schema.GroupVersionKind
	Resource  string // its plural
	HasStatus bool   // it has the subresource status

	schema    *structuralschema.Structural // nil for one of Kubernetes' own
	validator validation.SchemaValidator
	rules     *cel.Validator
}

// Builtin is one of Kubernetes' own kinds, which has a status.
func Builtin(gvk schema.GroupVersionKind, resource string) *Kind {
	return &Kind{GroupVersionKind: gvk, Resource: resource, HasStatus: true}
}

// ReadCRD returns the kind that a file with a CustomResourceDefinition describes, in the version that is stored.
func ReadCRD(path string) (*Kind, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(data, crd); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, version := range crd.Spec.Versions {
		if version.Storage {
			kind, err := newCustom(crd.Spec, version)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			return kind, nil
		}
	}
	return nil, fmt.Errorf("%s: no version is stored", path)
}

func newCustom(spec apiextensionsv1.CustomResourceDefinitionSpec, version apiextensionsv1.CustomResourceDefinitionVersion) (*Kind, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, internal, nil); err != nil {
		return nil, err
	}
	k := &Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: spec.Group, Version: version.Name, Kind: spec.Names.Kind},
		Resource:         spec.Names.Plural,
		HasStatus:        version.Subresources != nil && version.Subresources.Status != nil,
	}
	var err error
	if k.schema, err = structuralschema.NewStructural(internal); err != nil {
		return nil, err
	}
	if k.validator, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, err
	}
	k.rules = cel.NewValidator(k.schema, true, celconfig.PerCallLimit)
	return k, nil
}

// GroupResource is what requests and errors call the kind.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// complete prunes what the schema does not know, and fills in what it has defaults for.
func (k *Kind) complete(object map[string]any) {
	if k.schema == nil {
		return
	}
	pruning.Prune(object, k.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, k.schema)
	defaulting.Default(object, k.schema)
}

// validate says what the schema has against an object. The old one is nil for a new object.
func (k *Kind) validate(object, old map[string]any) (errs field.ErrorList) {
	if k.schema == nil {
		return nil
	}
	if old == nil {
		errs = validation.ValidateCustomResource(nil, object, k.validator)
	} else {
		errs = validation.ValidateCustomResourceUpdate(nil, object, old, k.validator)
	}
	if k.rules == nil || len(errs) > 0 {
		return errs
	}
	var before any
	if old != nil {
		before = old
	}
	errs, _ = k.rules.Validate(context.Background(), nil, k.schema, object, before, celconfig.RuntimeCELCostBudget)
	return errs
}
