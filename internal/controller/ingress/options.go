// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"container.training/useless/api/useless/v1beta1"
)

// Options configure the controller.
type Options struct {
	// Annotations are ensured on every Ingress.
	Annotations Annotations
}

// Annotations are values by key. As a flag.Value they are given one at a time, as key=value.
type Annotations map[string]string

// String implements flag.Value.
func (a *Annotations) String() string {
	pairs := make([]string, 0, len(*a))
	for _, key := range slices.Sorted(maps.Keys(*a)) {
		pairs = append(pairs, key+"="+(*a)[key])
	}
	return strings.Join(pairs, "\n")
}

// Set implements flag.Value. It returns an error for what is no annotation, for one that is not to be configured, and for
// a second value of the same key.
func (a *Annotations) Set(pair string) error {
	key, value, found := strings.Cut(pair, "=")
	if !found {
		return errors.New("want key=value, for example foo=bar")
	}
	if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 { // as the API server reads it
		return fmt.Errorf("annotation key %q: %s", key, strings.Join(problems, "; "))
	}
	if strings.HasPrefix(key, v1beta1.GroupVersion.Group+"/") {
		return fmt.Errorf("annotation key %q: those in %s are the operator's own", key, v1beta1.GroupVersion.Group)
	}
	if key == corev1.LastAppliedConfigAnnotation {
		return fmt.Errorf("annotation key %q: that is kubectl's own", key)
	}
	if other, ok := (*a)[key]; ok && other != value {
		return fmt.Errorf("annotation key %q: got two values, %q and %q; give it one", key, other, value)
	}
	if *a == nil {
		*a = Annotations{}
	}
	(*a)[key] = value
	return nil
}
