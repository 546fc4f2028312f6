// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// overlap reports whether two selectors have a label key in common and some object could match both. It ignores
// selectors without a common key: an object could match both, but users rarely intend that.
func overlap(a, b labels.Selector) bool {
	byLabel := map[string][]labels.Requirement{}
	related := false
	for _, requirement := range requirements(a) {
		byLabel[requirement.Key()] = append(byLabel[requirement.Key()], requirement)
	}
	for _, requirement := range requirements(b) {
		related = related || mentions(a, requirement.Key())
		byLabel[requirement.Key()] = append(byLabel[requirement.Key()], requirement)
	}
	for _, all := range byLabel {
		if !satisfiable(all) {
			return false
		}
	}
	return related
}

// satisfiable reports whether one label can meet all of its requirements.
func satisfiable(all []labels.Requirement) bool {
	var allowed sets.Set[string] // nil: any value
	excluded := sets.New[string]()
	required, forbidden := false, false
	for _, requirement := range all {
		values := sets.New(requirement.ValuesUnsorted()...)
		switch requirement.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			required = true
			if allowed == nil {
				allowed = values
			}
			allowed = allowed.Intersection(values)
		case selection.Exists:
			required = true
		case selection.NotIn, selection.NotEquals:
			excluded = excluded.Union(values)
		case selection.DoesNotExist:
			forbidden = true
		}
	}
	if required && forbidden {
		return false
	}
	return allowed == nil || allowed.Difference(excluded).Len() > 0
}

func mentions(selector labels.Selector, key string) bool {
	for _, requirement := range requirements(selector) {
		if requirement.Key() == key {
			return true
		}
	}
	return false
}

func requirements(selector labels.Selector) labels.Requirements {
	all, _ := selector.Requirements()
	return all
}
