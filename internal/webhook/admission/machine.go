// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admission checks the rules for Machines that their schema cannot express. These rules depend on the
// operator's flags, or need a label parser. If a field of an existing Machine is already invalid, the webhooks accept
// requests that do not change this field. So users can still update the object.
package admission

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/webhook/server"
)

const (
	validatePath = "/validate-useless-container-training-v1beta1-machine"
	scalePath    = validatePath + "-scale"

	// selectorIndex is the index of the Machines with a selector in their spec.
	selectorIndex = "spec.switches.selector"
	hasSelector   = "present"

	// Limits of the warnings about other Machines.
	warningTimeout = time.Second
	maxWarnings    = 5
)

// Setup adds the admission webhooks to a manager. They reject Machines with more switches than maxSwitches.
func Setup(ctx context.Context, mgr ctrl.Manager, maxSwitches int32) error {
	index := func(object client.Object) []string {
		if object.(*v1beta1.Machine).Spec.Switches.Selector == nil {
			return nil
		}
		return []string{hasSelector}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.Machine{}, selectorIndex, index); err != nil {
		return err
	}
	validators := map[string]http.Handler{
		validatePath: admission.WithValidator(mgr.GetScheme(), newMachineValidator(mgr.GetClient(), maxSwitches)),
		scalePath:    admission.WithValidator(mgr.GetScheme(), newScaleValidator(maxSwitches)),
	}
	large := semaphore.NewWeighted(server.MaxLarge)
	for path, validator := range validators {
		mgr.GetWebhookServer().Register(path, server.LimitReviews(validator, large))
	}
	return nil
}

// The API server sends only requests that change a spec. So clients can write labels and finalizers while the webhook
// is not available.

// +kubebuilder:webhook:path=/validate-useless-container-training-v1beta1-machine,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=useless.container.training,resources=machines,verbs=create;update,versions=v1beta1,name=machine.useless.container.training,admissionReviewVersions=v1,patch=`{"matchConditions":[{"name":"spec-changes","expression":"request.operation == 'CREATE' || object.?spec != oldObject.?spec"}]}`
// +kubebuilder:webhook:path=/validate-useless-container-training-v1beta1-machine-scale,mutating=false,failurePolicy=fail,matchPolicy=Equivalent,sideEffects=None,timeoutSeconds=5,groups=useless.container.training,resources=machines/scale,verbs=update,versions=v1beta1,name=machine-scale.useless.container.training,admissionReviewVersions=v1

// The warnings need a cache of all Machines, even if the controller of Machines is disabled.

// +kubebuilder:rbac:groups=useless.container.training,resources=machines,verbs=list;watch

// validator is an admission.Validator for creations and updates. The object old is nil for a creation.
type validator[T runtime.Object] func(ctx context.Context, old, object T) (admission.Warnings, error)

// ValidateCreate implements admission.Validator.
func (v validator[T]) ValidateCreate(ctx context.Context, object T) (admission.Warnings, error) {
	var old T
	return v(ctx, old, object)
}

// ValidateUpdate implements admission.Validator.
func (v validator[T]) ValidateUpdate(ctx context.Context, old, object T) (admission.Warnings, error) {
	return v(ctx, old, object)
}

// ValidateDelete implements admission.Validator. The API server does not send deletions.
func (v validator[T]) ValidateDelete(context.Context, T) (admission.Warnings, error) { return nil, nil }

// newMachineValidator returns a validator of Machines. It reads other Machines for its warnings.
func newMachineValidator(reader client.Reader, maxSwitches int32) validator[*v1beta1.Machine] {
	return func(ctx context.Context, old, m *v1beta1.Machine) (admission.Warnings, error) {
		err := invalid(m.Name, validate(old, m, maxSwitches, pathsOf(ctx)))
		if err != nil || old != nil {
			return nil, err
		}
		return overlapWarnings(ctx, reader, m), nil
	}
}

// newScaleValidator returns a validator of the scale subresource. The API server sends its updates as a Scale, and not
// as a Machine. A Scale cannot be created.
func newScaleValidator(maxSwitches int32) validator[*autoscalingv1.Scale] {
	return func(_ context.Context, old, scale *autoscalingv1.Scale) (admission.Warnings, error) {
		if old == nil {
			return nil, nil
		}
		errs := validateCount(old.Spec.Replicas, scale.Spec.Replicas, maxSwitches, field.NewPath("spec", "replicas"))
		return nil, invalid(scale.Name, errs)
	}
}

// invalid returns an error about the fields of a Machine, or nil if there are no errors.
func invalid(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1beta1.GroupVersion.WithKind("Machine").GroupKind(), name, errs)
}

// paths are the paths of the validated fields, in the API version of the user's request.
type paths struct {
	count, selector, template *field.Path
}

func pathsOf(ctx context.Context) paths {
	spec := field.NewPath("spec")
	request, err := admission.RequestFromContext(ctx)
	if err == nil && request.RequestKind != nil && request.RequestKind.Version == v1alpha1.GroupVersion.Version {
		return paths{spec.Child("switches"), spec.Child("selector"), spec.Child("template", "metadata")}
	}
	switches := spec.Child("switches")
	return paths{switches.Child("count"), switches.Child("selector"), switches.Child("template", "metadata")}
}

// validate returns the errors of m that old does not have. old is nil for a new Machine.
func validate(old, m *v1beta1.Machine, maxSwitches int32, at paths) field.ErrorList {
	if old == nil {
		errs := append(validateName(m), validateCount(0, m.Spec.Switches.Count, maxSwitches, at.count)...)
		return append(errs, validateTemplate(m, at)...)
	}
	errs := validateCount(old.Spec.Switches.Count, m.Spec.Switches.Count, maxSwitches, at.count)
	if !equality.Semantic.DeepEqual(old.Spec.Switches.Selector, m.Spec.Switches.Selector) {
		errs = append(errs, field.Invalid(at.selector, m.Spec.Switches.Selector,
			"is immutable: create a new Machine instead"))
	}
	before := validateTemplate(old, at)
	for _, err := range validateTemplate(m, at) {
		isOld := slices.ContainsFunc(before, func(b *field.Error) bool { return b.Error() == err.Error() })
		if !isOld {
			errs = append(errs, err)
		}
	}
	return errs
}

func validateName(m *v1beta1.Machine) field.ErrorList {
	if len(m.Name) <= v1beta1.MaxMachineNameLength {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "name"), m.Name,
		fmt.Sprintf("must be at most %d characters, because it becomes a label value", v1beta1.MaxMachineNameLength))}
}

// validateCount rejects a negative count, and a count that exceeds both maxSwitches and the old count.
func validateCount(old, count, maxSwitches int32, at *field.Path) field.ErrorList {
	switch {
	case count < 0: // zero means that the field is absent
		return field.ErrorList{field.Invalid(at, count, "must be at least 1")}
	case count > maxSwitches && count > old:
		return field.ErrorList{field.Invalid(at, count,
			fmt.Sprintf("must be at most %d, which is the operator's --max-switches", maxSwitches))}
	}
	return nil
}

func validateTemplate(m *v1beta1.Machine, at paths) field.ErrorList {
	template := m.Spec.Switches.Template.Metadata
	own := make(map[string]string, len(template.Labels))
	for name, value := range template.Labels {
		own[name] = string(value)
	}
	errs := metav1validation.ValidateLabels(own, at.template.Child("labels"))
	errs = append(errs, apivalidation.ValidateAnnotations(template.Annotations, at.template.Child("annotations"))...)

	selector, err := m.SwitchSelector()
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(at.selector, m.Spec.Switches.Selector, "does not parse: "+err.Error()))
	case selector.Empty():
		errs = append(errs, field.Invalid(at.selector, m.Spec.Switches.Selector,
			"must not be empty, because it would select every Switch in the namespace"))
	case !selector.Matches(labels.Set(m.SwitchLabels())):
		errs = append(errs, field.Invalid(at.template.Child("labels"), template.Labels,
			fmt.Sprintf("must satisfy the selector %s", selector)))
	}
	return errs
}

// overlapWarnings returns warnings about other Machines whose selectors can match the same Switches. If a Switch has no
// controller, any of these Machines may adopt it.
func overlapWarnings(ctx context.Context, reader client.Reader, m *v1beta1.Machine) admission.Warnings {
	selector, err := m.SwitchSelector()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, warningTimeout)
	defer cancel()
	others := &v1beta1.MachineList{}
	options := []client.ListOption{client.InNamespace(m.Namespace), client.UnsafeDisableDeepCopy}
	if !mentions(selector, v1beta1.MachineLabel) || m.Spec.Switches.Selector == nil {
		// Here, only Machines with a selector in their spec can overlap. Two default selectors never overlap, and a
		// default selector never overlaps a selector without MachineLabel.
		options = append(options, client.MatchingFields{selectorIndex: hasSelector})
	}
	if reader.List(ctx, others, options...) != nil {
		return nil // warnings are optional
	}
	var warnings admission.Warnings
	for i := range others.Items {
		if len(warnings) == maxWarnings {
			return append(warnings, "there may be more")
		}
		other := &others.Items[i]
		if otherSelector, err := other.SwitchSelector(); err == nil && other.Name != m.Name &&
			overlap(selector, otherSelector) {
			warnings = append(warnings, fmt.Sprintf(
				"selector %s overlaps the selector of Machine %s, %s: either may adopt a Switch that matches both",
				selector, other.Name, otherSelector))
		}
	}
	return warnings
}

// overlap reports whether two selectors have a label key in common and some object could match both. It returns false
// for selectors without a common key: an object could match both, but users rarely create such objects.
func overlap(a, b labels.Selector) bool {
	byKey := map[string]labels.Requirements{}
	for _, requirement := range slices.Concat(requirements(a), requirements(b)) {
		byKey[requirement.Key()] = append(byKey[requirement.Key()], requirement)
	}
	related := false
	for key, all := range byKey {
		if !satisfiable(key, all) {
			return false
		}
		related = related || mentions(a, key) && mentions(b, key)
	}
	return related
}

// satisfiable reports whether a label with the key, or its absence, can meet all requirements. It tries each value in
// the requirements, one other value, and no label.
func satisfiable(key string, all labels.Requirements) bool {
	candidates := []labels.Set{{}, {key: "?"}} // "?" is invalid, so no requirement has this value
	for _, requirement := range all {
		for value := range requirement.Values() {
			candidates = append(candidates, labels.Set{key: value})
		}
	}
	return slices.ContainsFunc(candidates, func(candidate labels.Set) bool {
		return !slices.ContainsFunc(all, func(r labels.Requirement) bool { return !r.Matches(candidate) })
	})
}

func mentions(selector labels.Selector, key string) bool {
	return slices.ContainsFunc(requirements(selector), func(r labels.Requirement) bool { return r.Key() == key })
}

func requirements(selector labels.Selector) labels.Requirements {
	all, _ := selector.Requirements()
	return all
}
