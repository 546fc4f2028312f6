// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Defaults and limits of a Machine. The kubebuilder markers repeat these values.
const (
	// DefaultSwitchCount is the default number of switches.
	DefaultSwitchCount int32 = 1
	// DefaultFlipSeconds is the default of both the flip delay and the flip interval, in seconds.
	DefaultFlipSeconds int32 = 5
	// MaxMachineNameLength is the maximum length of a Machine's name. It is the maximum length of a label value,
	// because the name becomes a label value.
	MaxMachineNameLength = 63
)

// Position is the position of a switch.
// +kubebuilder:validation:Enum=up;down
type Position string

const (
	// PositionUp means that the switch is up. The operator turns it back down when the switch is due.
	PositionUp Position = "up"
	// PositionDown means that the switch is down. It is the default.
	PositionDown Position = "down"
)

// Machine has switches. When someone turns a switch up, the operator turns it back down. The name of a Machine has at
// most 63 characters.
//
// +genclient
// +genclient:method=GetScale,verb=get,subresource=scale,result=k8s.io/api/autoscaling/v1.Scale
// +genclient:method=UpdateScale,verb=update,subresource=scale,input=k8s.io/api/autoscaling/v1.Scale,result=k8s.io/api/autoscaling/v1.Scale
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.switches.count,statuspath=.status.switches.total,selectorpath=.status.selector
// +kubebuilder:storageversion
// +kubebuilder:resource:shortName=um,categories=useless
// +kubebuilder:printcolumn:name=Switches,type=integer,JSONPath=`.spec.switches.count`
// +kubebuilder:printcolumn:name=Positions,type=string,JSONPath=`.status.positions`
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec.switches.selector) || self.spec.switches.?template.?metadata.?labels[?'machine'].orValue(self.metadata.name) == self.metadata.name",fieldPath=".spec.switches.template.metadata.labels",messageExpression="'machine=' + self.spec.switches.template.metadata.labels['machine'] + ' does not satisfy the default selector machine=' + self.metadata.name"
type Machine struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the desired state.
	// +optional
	// +kubebuilder:default={}
	Spec MachineSpec `json:"spec,omitzero"`

	// status is the state that the operator last observed.
	// +optional
	Status MachineStatus `json:"status,omitzero"`
}

// MachineSpec is the desired state of a Machine.
type MachineSpec struct {
	// switches configures the number, the selector and the template of the switches.
	// +optional
	// +kubebuilder:default={}
	Switches SwitchesSpec `json:"switches,omitzero"`

	// position is down or up. The default is down. If it is up, the operator waits until the requested number of
	// switches exists. Then it turns all switches up once. After that, it turns them down one by one. When all switches
	// are down, it resets this field to down.
	// +optional
	// +kubebuilder:default=down
	Position Position `json:"position,omitempty"`

	// flip configures the times at which the operator turns switches down.
	// +optional
	// +kubebuilder:default={}
	Flip FlipSpec `json:"flip,omitzero"`
}

// SwitchesSpec is the number, the selector and the template of a Machine's switches.
//
// +kubebuilder:validation:XValidation:rule="has(self.selector) == has(oldSelf.selector) && (!has(self.selector) || self.selector == oldSelf.selector)",fieldPath=".selector",message="selector is immutable: create a new Machine instead"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchLabels) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchLabels.all(k, !(k in self.template.metadata.labels) || self.template.metadata.labels[k] == self.selector.matchLabels[k])",fieldPath=".template.metadata.labels",messageExpression="[self.selector.matchLabels.filter(k, k in self.template.metadata.labels && self.template.metadata.labels[k] != self.selector.matchLabels[k])[0]].map(k, k + '=' + self.template.metadata.labels[k] + ' does not satisfy matchLabels ' + k + '=' + self.selector.matchLabels[k])[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions)) || self.selector.matchExpressions.all(e, e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, !(e.operator in ['NotIn', 'DoesNotExist'] || (has(self.selector.matchLabels) && e.key in self.selector.matchLabels) || (has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels)), e.key + ' is missing, but matchExpressions require it')[0]"
// +kubebuilder:validation:XValidation:rule="!(has(self.selector) && has(self.selector.matchExpressions) && has(self.template) && has(self.template.metadata) && has(self.template.metadata.labels)) || self.selector.matchExpressions.all(e, !(e.key in self.template.metadata.labels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values)))",fieldPath=".template.metadata.labels",messageExpression="self.selector.matchExpressions.map(e, e.key in self.template.metadata.labels && !(e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.template.metadata.labels[e.key] in e.values))), e.key + '=' + self.template.metadata.labels[e.key] + ' does not satisfy matchExpressions: ' + e.key + ' ' + (has(e.values) ? e.operator + ' (' + e.values.join(', ') + ')' : e.operator))[0]"
type SwitchesSpec struct {
	// count is the number of switches, from 1 to 1000. The default is 1. The operator's flag --max-switches sets a
	// lower maximum (default 100). For example, 3.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Count int32 `json:"count,omitempty"`

	// selector selects the Machine's switches in its namespace. It is immutable and must not be empty. If it is absent,
	// the operator selects the switches that have the label machine with the Machine's name as value.
	// +optional
	Selector *LabelSelector `json:"selector,omitempty"`

	// template contains the labels and annotations of new switches. The operator also adds the matchLabels of the
	// selector.
	// +optional
	Template SwitchTemplate `json:"template,omitzero"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
type LabelValue string

// LabelSelector selects objects by their labels, like metav1.LabelSelector. Its size limits let the API server
// validate it without a webhook.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="size(self.?matchLabels.orValue({})) + size(self.?matchExpressions.orValue([])) > 0",message="selector must not be empty, because it would select every Switch in the namespace"
// +kubebuilder:validation:XValidation:rule="!(has(self.matchLabels) && has(self.matchExpressions)) || self.matchExpressions.all(e, !(e.key in self.matchLabels) || e.operator == 'Exists' || (e.operator != 'DoesNotExist' && has(e.values) && (e.operator == 'In') == (self.matchLabels[e.key] in e.values)))",fieldPath=".matchExpressions",message="selector contradicts itself: matchLabels do not satisfy matchExpressions"
type LabelSelector struct {
	// matchLabels are labels that an object must have, with exactly these values. At most 16, with values of at most 63
	// characters. For example, {room: lab}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	MatchLabels map[string]LabelValue `json:"matchLabels,omitzero"`

	// matchExpressions are further requirements. An object must satisfy all of them. At most 16. For example, [{key:
	// room, operator: In, values: [lab, hall]}].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitzero"`
}

// LabelSelectorRequirement is a requirement on one label.
//
// +kubebuilder:validation:XValidation:rule="(self.operator == 'In' || self.operator == 'NotIn') == (size(self.?values.orValue([])) > 0)",fieldPath=".values",messageExpression="self.key + ' ' + self.operator + ': the operators In and NotIn require values, and the other operators do not allow values'"
type LabelSelectorRequirement struct {
	// key is the name of the label. It has 1 to 317 characters. For example, room.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`

	// operator is In, NotIn, Exists or DoesNotExist.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator,omitempty"`

	// values are required for In and NotIn, and not allowed for other operators. At most 16, each with at most 63
	// characters. For example, [lab, hall].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Values []LabelValue `json:"values,omitzero"`
}

// SwitchTemplate is the template of new switches.
type SwitchTemplate struct {
	// metadata is copied to new switches. Existing switches do not change.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitzero"`
}

// TemplateMetadata is the metadata that a template can set.
type TemplateMetadata struct {
	// labels are added to new switches, in addition to the matchLabels of the selector. At most 64, with values of at
	// most 63 characters. For example, {room: lab}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]LabelValue `json:"labels,omitzero"`

	// annotations are added to new switches. At most 64. For example, {owner: alice}.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitzero"`
}

// FlipSpec configures the flips of a Machine. In a flip, the operator turns one switch down. It waits until both the
// delay and the interval have passed.
type FlipSpec struct {
	// delaySeconds is the minimum time in seconds that a switch stays up after the operator noticed it. The range is 0
	// to 86400 (one day). The default is 5. For example, 30.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	DelaySeconds *int32 `json:"delaySeconds,omitempty"`

	// intervalSeconds is the minimum time in seconds between two flips of the Machine. The range is 0 to 86400 (one
	// day). The default is 5. If it is 0, the operator turns each switch down as soon as its delay has passed. For
	// example, 60.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`
}

// MachineStatus is the state that the operator last observed. All versions of the API use this type.
type MachineStatus struct {
	// conditions has three types. Scaled: the requested number of switches exists. Resting: all switches are down.
	// Ready: the Machine is Scaled and Resting.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes. For example, 2.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// switches counts the switches by position.
	// +optional
	Switches SwitchCounts `json:"switches,omitzero"`

	// positions has one letter for each switch: u for up, d for down. The letters are in the order of the switches'
	// names. Numbers at the end of names are compared as numbers, so m-2 is before m-10. For example, udd.
	// +optional
	Positions string `json:"positions,omitempty"`

	// position is the last spec.position that the operator applied: up or down.
	// +optional
	Position Position `json:"position,omitempty"`

	// selector is the selector as a string, for the scale subresource. For example, machine=machine-1.
	// +optional
	Selector string `json:"selector,omitempty"`

	// seenAt is the time at which the operator noticed the switch that has been up for the longest time. It is absent
	// if all switches are down. For example, "2026-11-20T09:00:00.123456Z".
	// +optional
	SeenAt *metav1.MicroTime `json:"seenAt,omitempty"`

	// lastFlipTime is the time at which the operator last turned a switch down. It is absent if the operator has never
	// done so. For example, "2026-11-20T09:00:05.123456Z".
	// +optional
	LastFlipTime *metav1.MicroTime `json:"lastFlipTime,omitempty"`
}

// SwitchCounts counts switches by position.
type SwitchCounts struct {
	// total is the number of switches. For example, 3.
	// +required
	// +kubebuilder:validation:Maximum=2147483647
	Total int32 `json:"total"`

	// up is the number of switches that are up. For example, 1.
	// +required
	// +kubebuilder:validation:Maximum=2147483647
	Up int32 `json:"up"`

	// down is the number of switches that are down. For example, 2.
	// +required
	// +kubebuilder:validation:Maximum=2147483647
	Down int32 `json:"down"`
}

// MachineList is a list of Machines.
//
// +kubebuilder:object:root=true
type MachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the Machines.
	Items []Machine `json:"items"`
}

// SwitchSelector returns the selector of the Machine's switches. If spec.switches.selector is absent, the result
// selects switches by MachineLabel with the Machine's name. It returns an error if the selector is invalid.
func (m *Machine) SwitchSelector() (labels.Selector, error) {
	if m.Spec.Switches.Selector == nil {
		return labels.SelectorFromValidatedSet(labels.Set{MachineLabel: m.Name}), nil
	}
	return m.Spec.Switches.Selector.AsSelector()
}

// SwitchLabels returns the labels of a new switch: the labels of the template, and the matchLabels of the selector or
// MachineLabel. The caller may change the map.
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

// AsSelector parses the selector, which must not be nil. It returns the same errors as metav1.LabelSelectorAsSelector.
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
