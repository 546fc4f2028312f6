// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SwitchSelector selects the Machine's switches: by its selector, or by the label machine with its name where it has
// none. It fails if the selector does not parse.
func (m *Machine) SwitchSelector() (labels.Selector, error) {
	if m.Spec.Switches.Selector == nil {
		return labels.SelectorFromValidatedSet(labels.Set{MachineLabel: m.Name}), nil
	}
	return m.Spec.Switches.Selector.AsSelector()
}

// SwitchLabels are the labels of a new switch: those that the selector names, and the template's.
func (m *Machine) SwitchLabels() map[string]string {
	merged := map[string]string{}
	if m.Spec.Switches.Selector == nil {
		merged[MachineLabel] = m.Name
	} else {
		maps.Copy(merged, m.Spec.Switches.Selector.MatchLabels)
	}
	maps.Copy(merged, m.Spec.Switches.Template.Metadata.Labels)
	return merged
}

// AsSelector parses the selector. It fails where metav1.LabelSelectorAsSelector does.
func (s *LabelSelector) AsSelector() (labels.Selector, error) {
	meta := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, requirement := range s.MatchExpressions {
		meta.MatchExpressions = append(meta.MatchExpressions, metav1.LabelSelectorRequirement(requirement))
	}
	return metav1.LabelSelectorAsSelector(meta)
}
