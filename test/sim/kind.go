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

// A Kind is a kind of object that a server stores.
type Kind struct {
	schema.GroupVersionKind
	Resource  string // the plural
	HasStatus bool   // the kind has the status subresource

	schema    *structuralschema.Structural // nil for built-in kinds
	validator validation.SchemaValidator
	rules     *cel.Validator
	fields    *managedfields.FieldManager // nil for kinds without server-side apply
	review    bool                        // an access review, which is answered but not stored
}

// Builtin returns a built-in kind of Kubernetes with a status.
func Builtin(gvk schema.GroupVersionKind, resource string) *Kind {
	return &Kind{GroupVersionKind: gvk, Resource: resource, HasStatus: true}
}

// BuiltinWithApply returns a built-in kind that supports server-side apply and tracks field managers.
func BuiltinWithApply(gvk schema.GroupVersionKind, resource string) (*Kind, error) {
	k := Builtin(gvk, resource)
	var err error
	k.fields, err = managedfields.NewDefaultFieldManager(applyconfigurations.NewTypeConverter(scheme),
		identityConvertor{},
		unstructuredscheme.NewUnstructuredDefaulter(), unstructuredscheme.NewUnstructuredCreator(), gvk,
		gvk.GroupVersion(), "", nil)
	return k, err
}

// AccessReview returns a kind of access review. The server allows every request.
func AccessReview(gvk schema.GroupVersionKind, resource string) *Kind {
	return &Kind{GroupVersionKind: gvk, Resource: resource, review: true}
}

// identityConvertor does not convert objects, because each kind has only one version.
type identityConvertor struct{ runtime.ObjectConvertor }

func (identityConvertor) ConvertToVersion(object runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return object, nil
}

// ReadCRD returns the kind that a CustomResourceDefinition manifest defines, in its storage version.
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
	return nil, fmt.Errorf("%s: it has no storage version", path)
}

func newCustom(spec apiextensionsv1.CustomResourceDefinitionSpec,
	version apiextensionsv1.CustomResourceDefinitionVersion) (*Kind, error) {
	internal := &apiextensions.JSONSchemaProps{}
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if err := convert(version.Schema.OpenAPIV3Schema, internal, nil); err != nil {
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

// GroupResource returns the kind's group and plural.
func (k *Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// complete prunes unknown fields and sets defaults.
func (k *Kind) complete(object map[string]any) {
	if k.schema == nil {
		return
	}
	pruning.Prune(object, k.schema, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, k.schema)
	defaulting.Default(object, k.schema)
}

// validate returns the schema's validation errors. Parameter old is nil for a new object.
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

// empty returns an object with only its apiVersion and kind.
func (k *Kind) empty() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(k.GroupVersionKind)
	return object
}

// trackFields records in the object's managed fields which fields the manager has changed.
func (k *Kind) trackFields(old, object *unstructured.Unstructured, manager string) *unstructured.Unstructured {
	if k.fields == nil {
		object.SetManagedFields(nil)
		return object
	}
	return k.fields.UpdateNoErrors(old.DeepCopy(), object, manager).(*unstructured.Unstructured)
}

// apply sets the fields that a manager applies. It removes fields that the manager applied earlier but does not apply
// now.
func (k *Kind) apply(old, applied *unstructured.Unstructured, manager string,
	force bool) (*unstructured.Unstructured, error) {
	object, err := k.fields.Apply(old.DeepCopy(), applied, manager, force)
	if err != nil {
		return nil, err
	}
	return object.(*unstructured.Unstructured), nil
}

// patch returns a patched copy of an object. The patch is JSON.
func (k *Kind) patch(object *unstructured.Unstructured, change []byte,
	how types.PatchType) (*unstructured.Unstructured, error) {
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

// merge applies a merge patch (RFC 7386). For speed, it does not encode the object as JSON: simulations apply many
// patches.
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
