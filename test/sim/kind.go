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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/applyconfigurations"
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
	fields    *managedfields.FieldManager // nil where nobody applies any
	question  bool                        // it is answered, and not kept
}

// Builtin is one of Kubernetes' own kinds, which has a status.
func Builtin(gvk schema.GroupVersionKind, resource string) *Kind {
	return &Kind{GroupVersionKind: gvk, Resource: resource, HasStatus: true}
}

// Applied is one of Kubernetes' own kinds whose fields can be applied. It is known which field manager has which.
func Applied(gvk schema.GroupVersionKind, resource string) (*Kind, error) {
	k := Builtin(gvk, resource)
	var err error
	k.fields, err = managedfields.NewDefaultFieldManager(applyconfigurations.NewTypeConverter(scheme), asIs{},
		unstructuredscheme.NewUnstructuredDefaulter(), unstructuredscheme.NewUnstructuredCreator(), gvk, gvk.GroupVersion(), "", nil)
	return k, err
}

// Question is one of Kubernetes' own kinds that ask whether something is allowed, which everything is.
func Question(gvk schema.GroupVersionKind, resource string) *Kind {
	return &Kind{GroupVersionKind: gvk, Resource: resource, question: true}
}

// asIs leaves objects in the only version that there is.
type asIs struct{ runtime.ObjectConvertor }

func (asIs) ConvertToVersion(object runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return object, nil
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

// empty is an object that is not there.
func (k *Kind) empty() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	return object
}

// note has an object tell who has changed which of its fields.
func (k *Kind) note(old, object *unstructured.Unstructured, manager string) *unstructured.Unstructured {
	if k.fields == nil {
		object.SetManagedFields(nil)
		return object
	}
	return k.fields.UpdateNoErrors(old.DeepCopy(), object, manager).(*unstructured.Unstructured)
}

// apply sets the fields of an object that a field manager applies, and removes those that it no longer does.
func (k *Kind) apply(old, applied *unstructured.Unstructured, manager string, force bool) (*unstructured.Unstructured, error) {
	object, err := k.fields.Apply(old.DeepCopy(), applied, manager, force)
	if err != nil {
		return nil, err
	}
	return object.(*unstructured.Unstructured), nil
}

// patch is an object with a change, which is JSON.
func (k *Kind) patch(object *unstructured.Unstructured, change []byte, how types.PatchType) (*unstructured.Unstructured, error) {
	if how == types.StrategicMergePatchType {
		return k.strategicPatch(object, change)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(change, &fields); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	changed := object.DeepCopy()
	merge(changed.Object, fields)
	return changed, nil
}

// merge is a merge patch as RFC 7386 has it, without a detour over JSON: there are very many of them.
func merge(object, change map[string]any) {
	for name, value := range change {
		inner, isMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(object, name)
		case isMap:
			into, ok := object[name].(map[string]any)
			if !ok {
				into = map[string]any{}
				object[name] = into
			}
			merge(into, inner)
		default:
			object[name] = value
		}
	}
}

func (k *Kind) strategicPatch(object *unstructured.Unstructured, change []byte) (*unstructured.Unstructured, error) {
	typed, err := scheme.New(k.GroupVersionKind)
	if err != nil {
		return nil, err
	}
	before, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, change, typed)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return decode(after)
}
