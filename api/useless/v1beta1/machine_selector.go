// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// SwitchSelector returns the selector of the Machine's switches. Without spec.switches.selector, it is MachineLabel
// with the Machine's name. It returns an error if the selector is invalid.
func (m *Machine) SwitchSelector() (labels.Selector, error) {
	if m.Spec.Switches.Selector == nil {
		return labels.SelectorFromValidatedSet(labels.Set{MachineLabel: m.Name}), nil
	}
	return m.Spec.Switches.Selector.AsSelector()
}

// SwitchLabels returns the labels of a new switch: the matchLabels of the selector and the labels of the template.
func (m *Machine) SwitchLabels() map[string]string {
	merged := map[string]string{}
	if selector := m.Spec.Switches.Selector; selector == nil {
		merged[MachineLabel] = m.Name
	} else {
		mergeLabels(merged, selector.MatchLabels)
	}
	mergeLabels(merged, m.Spec.Switches.Template.Metadata.Labels)
	return merged
}

// AsSelector parses the selector. It returns the same errors as metav1.LabelSelectorAsSelector.
func (s *LabelSelector) AsSelector() (labels.Selector, error) {
	meta := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	mergeLabels(meta.MatchLabels, s.MatchLabels)
	for _, requirement := range s.MatchExpressions {
		values := make([]string, 0, len(requirement.Values))
		for _, value := range requirement.Values {
			values = append(values, string(value))
		}
		meta.MatchExpressions = append(meta.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: requirement.Key, Operator: requirement.Operator, Values: values,
		})
	}
	return metav1.LabelSelectorAsSelector(meta)
}

func mergeLabels(into map[string]string, from map[string]LabelValue) {
	for name, value := range from {
		into[name] = string(value)
	}
}
