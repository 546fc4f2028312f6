// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// Options configure the controller.
type Options struct {
	// Annotations are set on every selected Ingress. Empty means none.
	Annotations Annotations

	// Policy applies to annotations that already have another value. Empty means PolicyAlways.
	Policy Policy

	// Classes select Ingresses by the name of their class. Empty selects all Ingresses.
	Classes Classes
}

// Policy defines the treatment of annotations that another client has set.
type Policy string

// Policies.
const (
	// PolicyAlways overwrites the values of other clients.
	PolicyAlways Policy = "Always"
	// PolicyIfNotPresent sets an annotation only if no other client has set it.
	PolicyIfNotPresent Policy = "IfNotPresent"
)

// AddFlags adds the controller's flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.Func("ingress-annotation", "a `key=value` annotation that the controller ingress sets on Ingresses; "+
		"repeat the flag for more annotations", o.Annotations.Set)
	flags.StringVar((*string)(&o.Policy), "ingress-annotation-policy", string(PolicyAlways),
		"Always overwrites annotations that other clients have set, IfNotPresent keeps them")
	flags.Func("ingress-class", "the `name` of a class of Ingresses that get the annotations; "+
		"repeat the flag for more classes (default: all)", o.Classes.Set)
}

// Flags returns the names of the flags whose options are not the default.
func (o Options) Flags() (flags []string) {
	if len(o.Annotations) > 0 {
		flags = append(flags, "--ingress-annotation")
	}
	if o.Policy != "" && o.Policy != PolicyAlways {
		flags = append(flags, "--ingress-annotation-policy")
	}
	if len(o.Classes) > 0 {
		flags = append(flags, "--ingress-class")
	}
	return flags
}

// Validate returns an error for an unknown policy, and for options that have no effect or that contradict each other.
// The methods Set have validated the annotations and the classes.
func (o Options) Validate() error {
	var errs []error
	switch o.Policy {
	case "", PolicyAlways, PolicyIfNotPresent:
	default:
		errs = append(errs, fmt.Errorf("invalid value %q for flag --ingress-annotation-policy: must be %s or %s",
			o.Policy, PolicyAlways, PolicyIfNotPresent))
	}
	if len(o.Annotations) == 0 {
		for _, flag := range o.Flags() {
			errs = append(errs, fmt.Errorf("%s has no effect without --ingress-annotation", flag))
		}
	}
	// Otherwise the operator would change the class, which selects the Ingress, and would then change it back.
	if _, ok := o.Annotations[networkingv1beta1.AnnotationIngressClass]; ok && len(o.Classes) > 0 {
		errs = append(errs, fmt.Errorf("--ingress-class cannot be used with --ingress-annotation=%s=...: "+
			"that annotation changes the class", networkingv1beta1.AnnotationIngressClass))
	}
	return errors.Join(errs...)
}

// CacheOptions returns options that keep only the fields that the controller reads. These are the annotations, the
// class, and the managed fields of the annotations that the operator has set.
func (Options) CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{&networkingv1.Ingress{}: {Transform: strip}}
}

// Annotations maps keys to values.
type Annotations map[string]string

// Set adds an annotation from a flag, as key=value. It returns an error if the key is invalid, if it belongs to the
// operator or to kubectl, or if it already has another value.
func (a *Annotations) Set(pair string) error {
	key, value, found := strings.Cut(pair, "=")
	if !found {
		return errors.New("want key=value, for example foo=bar")
	}
	if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 { // like the API server
		return fmt.Errorf("annotation key %q: %s", key, strings.Join(problems, "; "))
	}
	if strings.HasPrefix(key, v1beta1.GroupVersion.Group+"/") {
		return fmt.Errorf("annotation key %q: keys in %s are reserved for the operator",
			key, v1beta1.GroupVersion.Group)
	}
	if key == corev1.LastAppliedConfigAnnotation {
		return fmt.Errorf("annotation key %q: this key is reserved for kubectl", key)
	}
	if other, ok := (*a)[key]; ok && other != value {
		return fmt.Errorf("annotation key %q: got two values, %q and %q, want one", key, other, value)
	}
	if *a == nil {
		*a = Annotations{}
	}
	(*a)[key] = value
	return nil
}

// Classes are names of IngressClasses.
type Classes []string

// Set adds a name from a flag. It returns an error for a name that no IngressClass can have.
func (c *Classes) Set(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("class name %q: %s", name, strings.Join(problems, "; "))
	}
	if !slices.Contains(*c, name) {
		*c = append(*c, name)
	}
	return nil
}

// selects reports whether an Ingress of this class is selected. The class is empty if the Ingress has none.
func (c Classes) selects(class string) bool { return len(c) == 0 || slices.Contains(c, class) }
